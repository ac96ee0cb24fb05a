#include "frames.h"

#include <string.h>

uint32_t tk_read_be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

void tk_write_be32(uint8_t *p, uint32_t value)
{
    p[0] = (uint8_t)(value >> 24);
    p[1] = (uint8_t)(value >> 16);
    p[2] = (uint8_t)(value >> 8);
    p[3] = (uint8_t)value;
}

tk_frame tk_read_frame(const uint8_t head[TK_FRAME_HEAD])
{
    return (tk_frame){
        .size = tk_read_be32(head) >> 8,
        .kind = head[3],
        .flags = head[4],
        .stream = tk_read_be32(head + 5) & 0x7fffffff,
    };
}

bool tk_put_frame(tk_outbox *out, tk_frame frame, const uint8_t *payload)
{
    if (out->room - out->size < TK_FRAME_HEAD + (size_t)frame.size)
        return false;
    uint8_t *p = out->bytes + out->size;
    tk_write_be32(p, frame.size << 8 | frame.kind);
    p[4] = frame.flags;
    tk_write_be32(p + 5, frame.stream);
    if (frame.size > 0)
        memcpy(p + TK_FRAME_HEAD, payload, frame.size);
    out->size += TK_FRAME_HEAD + frame.size;
    return true;
}

void tk_outbox_sent(tk_outbox *out, size_t size)
{
    if (size > out->size)
        size = out->size;
    out->size -= size;
    memmove(out->bytes, out->bytes + size, out->size);
}
