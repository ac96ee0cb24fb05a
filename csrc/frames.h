/* The heads of HTTP/2's frames (RFC 9113, 4.1), and frames put together in a buffer of fixed size. */
#ifndef TK_FRAMES_H
#define TK_FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TK_FRAME_HEAD 9
#define TK_FRAME_MOST 16384 /* bytes of a frame without its head, unless another size was agreed on */

enum {
    TK_FRAME_DATA,
    TK_FRAME_HEADERS,
    TK_FRAME_PRIORITY,
    TK_FRAME_RST,
    TK_FRAME_SETTINGS,
    TK_FRAME_PUSH,
    TK_FRAME_PING,
    TK_FRAME_GOAWAY,
    TK_FRAME_WINDOW,
    TK_FRAME_CONTINUATION,
};

enum { TK_FLAG_ACK = 1, TK_FLAG_END_STREAM = 1, TK_FLAG_END_HEADERS = 4, TK_FLAG_PADDED = 8, TK_FLAG_PRIORITY = 0x20 };

typedef struct {
    uint32_t size; /* of what follows the head */
    uint32_t stream;
    uint8_t kind;
    uint8_t flags;
} tk_frame;

/* Bytes that wait to be sent. */
typedef struct {
    uint8_t *bytes;
    size_t size;
    size_t room;
} tk_outbox;

tk_frame tk_read_frame(const uint8_t head[TK_FRAME_HEAD]);
uint32_t tk_read_be32(const uint8_t *p);
void tk_write_be32(uint8_t *p, uint32_t value);

/* False, and nothing was put, if there is no room. */
bool tk_put_frame(tk_outbox *out, tk_frame frame, const uint8_t *payload);
void tk_outbox_sent(tk_outbox *out, size_t size);

#endif
