/* What the peer says. */
#include "repeats_state.h"
#include "wire.h"

#include <string.h>

#define ROOM (1u << 20)      /* bytes that came after which the peer is told that there is room for more */
#define EXIT_CODE 3          /* field of an ExecSyncResponse */
#define PREFIX 5             /* bytes before a message */

static bool is_known(const tk_repeats *r, int tail, const uint8_t *bytes, size_t size)
{
    for (uint32_t i = 0; i < TK_REPEATS_BLOCKS; i++) {
        const block *b = &r->known[tail][i];
        if (b->size > 0 && b->size == size && memcmp(b->bytes, bytes, size) == 0)
            return true;
    }
    return false;
}

void tk_repeats_learn(tk_repeats *r, int tail, const uint8_t *bytes, size_t size)
{
    tail = tail != 0;
    if (size == 0 || size > TK_REPEATS_BLOCK || is_known(r, tail, bytes, size))
        return;
    block *b = &r->known[tail][r->oldest[tail]];
    r->oldest[tail] = (r->oldest[tail] + 1) % TK_REPEATS_BLOCKS;
    b->size = (uint32_t)size;
    memcpy(b->bytes, bytes, size);
}

/* Whether this is one whole message that says that the command succeeded. */
static bool says_success(const uint8_t *data, size_t size)
{
    if (size < PREFIX || data[0] != 0 || tk_read_be32(data + 1) != size - PREFIX)
        return false;
    const uint8_t *start = data + PREFIX;
    tk_reader reader = {.start = start, .pos = start, .end = data + size};
    uint64_t exit_code = 0;
    while (reader.pos < reader.end) {
        tk_tag tag;
        tk_code code = tk_read_tag(&reader, &tag);
        if (code == TK_OK && tag.number == EXIT_CODE && tag.type == TK_VARINT)
            code = tk_read_varint(&reader, &exit_code);
        else if (code == TK_OK)
            code = tk_skip(&reader, tag);
        if (code != TK_OK)
            return false;
    }
    return (uint32_t)exit_code == 0;
}

static bool passes(const tk_repeats *r, uint32_t i)
{
    const call *c = &r->calls[i];
    const uint8_t *answer = r->answers[i];
    return is_known(r, 0, answer, c->head) && is_known(r, 1, answer + c->head + c->data, c->tail) &&
           says_success(answer + c->head, c->data);
}

/* The answer is there, all of it. */
static void end_call(tk_repeats *r, uint32_t i, double now)
{
    call *c = &r->calls[i];
    repeat *each = &r->repeats[c->place];
    tk_repeats_remove(r, i);
    if (each->is_stopped || r->passed == TK_REPEATS_PASSED || !passes(r, i)) {
        tk_repeats_tell(r, c->place,
                        (tk_end){.began = c->began,
                                 .why = TK_END_ANSWERED,
                                 .head = c->head,
                                 .data = c->data,
                                 .tail = c->tail,
                                 .answer = r->answers[i]});
        return;
    }
    uint32_t at = (r->passed_first + r->passed++) % TK_REPEATS_PASSED;
    r->passes[at] = (tk_pass){.seconds = now - c->began, .id = each->id};
    each->is_under_way = false;
    r->due[c->place] = each->after > now ? each->after : now;
}

/* The next bytes of an answer; `part` counts those of their kind. False if the connection is broken. */
static bool take(tk_repeats *r, uint32_t i, uint32_t *part, tk_frame frame, const uint8_t *payload, double now)
{
    call *c = &r->calls[i];
    bool is_last = frame.flags & TK_FLAG_END_STREAM;
    size_t before = (size_t)c->head + c->data + c->tail;
    if (frame.size > TK_REPEATS_ANSWER - before) {
        bool is_told = is_last || tk_repeats_cancel(r, frame.stream);
        tk_repeats_fail(r, i, TK_END_TOO_LONG, 0);
        return is_told;
    }
    memcpy(r->answers[i] + before, payload, frame.size);
    *part += frame.size;
    if (is_last)
        end_call(r, i, now);
    return true;
}

static bool take_settings(tk_repeats *r, tk_frame frame, const uint8_t *payload)
{
    if (frame.stream != 0 || frame.size % 6 != 0)
        return false;
    if (frame.flags & TK_FLAG_ACK)
        return frame.size == 0;
    for (uint32_t at = 0; at < frame.size; at += 6) {
        uint32_t number = (uint32_t)payload[at] << 8 | payload[at + 1], value = tk_read_be32(payload + at + 2);
        if (number == 3) {
            r->most = value < AT_ONCE ? value : AT_ONCE;
        } else if (number == 4) {
            if (value > MOST_WINDOW)
                return false;
            r->peer_window = value;
        }
    }
    return tk_put_frame(&r->out, (tk_frame){.kind = TK_FRAME_SETTINGS, .flags = TK_FLAG_ACK}, NULL);
}

static bool take_window(tk_repeats *r, tk_frame frame, const uint8_t *payload)
{
    if (frame.size != 4)
        return false;
    uint32_t more = tk_read_be32(payload) & MOST_WINDOW;
    if (frame.stream != 0)
        return true; /* what was asked there has been sent */
    r->window += more;
    return more > 0 && r->window <= MOST_WINDOW;
}

static bool take_ping(tk_repeats *r, tk_frame frame, const uint8_t *payload, double now)
{
    if (frame.stream != 0 || frame.size != 8)
        return false;
    if (frame.flags & TK_FLAG_ACK)
        return true;
    if (r->pongs == PONGS && !tk_repeats_answer_pings(r))
        return false;
    if (r->pongs == 0)
        r->pinged = now;
    memcpy(r->pong[r->pongs++], payload, 8);
    return true;
}

static bool make_room(tk_repeats *r, uint32_t taken)
{
    r->taken += taken;
    if (r->taken < ROOM)
        return true;
    uint8_t more[4];
    tk_write_be32(more, r->taken);
    r->taken = 0;
    return tk_put_frame(&r->out, (tk_frame){.size = 4, .kind = TK_FRAME_WINDOW}, more);
}

/* False if it has no place here. What comes for a call that was broken off is passed over. */
static bool take_frame(tk_repeats *r, tk_frame frame, const uint8_t *payload, double now)
{
    bool is_stream = frame.stream != 0, is_odd = frame.flags & (TK_FLAG_PADDED | TK_FLAG_PRIORITY);
    uint32_t i = 0;
    while (is_stream && i < r->highest && r->streams[i] != frame.stream)
        i++;
    bool is_ours = is_stream && i < r->highest;
    switch (frame.kind) {
    case TK_FRAME_DATA:
        if (!is_stream || is_odd || !make_room(r, frame.size))
            return false;
        if (!is_ours)
            return true;
        return r->calls[i].has_head && take(r, i, &r->calls[i].data, frame, payload, now);
    case TK_FRAME_HEADERS:
        if (!is_stream || is_odd || !(frame.flags & TK_FLAG_END_HEADERS))
            return false;
        if (!is_ours)
            return true;
        if (r->calls[i].has_head)
            return frame.flags & TK_FLAG_END_STREAM && take(r, i, &r->calls[i].tail, frame, payload, now);
        r->calls[i].has_head = true;
        return take(r, i, &r->calls[i].head, frame, payload, now);
    case TK_FRAME_RST:
        if (!is_stream || frame.size != 4)
            return false;
        if (is_ours)
            tk_repeats_fail(r, i, TK_END_RESET, tk_read_be32(payload));
        return true;
    case TK_FRAME_SETTINGS:
        return take_settings(r, frame, payload);
    case TK_FRAME_PING:
        return take_ping(r, frame, payload, now);
    case TK_FRAME_GOAWAY:
        if (is_stream || frame.size < 8)
            return false;
        r->is_going_away = true;
        tk_repeats_lose_calls(r, tk_read_be32(payload) & MOST_WINDOW);
        return true;
    case TK_FRAME_WINDOW:
        return take_window(r, frame, payload);
    default:
        return frame.kind != TK_FRAME_PUSH && frame.kind != TK_FRAME_CONTINUATION;
    }
}

/* Takes the whole frames at the beginning of what came; false if one has no place here. */
static bool take_frames(tk_repeats *r, double now)
{
    uint32_t used = 0;
    while (r->in_size - used >= TK_FRAME_HEAD) {
        tk_frame frame = tk_read_frame(r->in + used);
        if (frame.size > TK_FRAME_MOST)
            return false;
        if (r->in_size - used - TK_FRAME_HEAD < frame.size)
            break;
        if (!take_frame(r, frame, r->in + used + TK_FRAME_HEAD, now))
            return false;
        used += TK_FRAME_HEAD + frame.size;
    }
    r->in_size -= used;
    memmove(r->in, r->in + used, r->in_size);
    return true;
}

void tk_repeats_take(tk_repeats *r, const uint8_t *data, size_t size, double now)
{
    while (r->is_open && size > 0) {
        size_t n = sizeof r->in - r->in_size;
        n = n < size ? n : size;
        memcpy(r->in + r->in_size, data, n);
        r->in_size += (uint32_t)n;
        data += n;
        size -= n;
        if (!take_frames(r, now)) {
            r->is_odd = true;
            tk_repeats_lose(r);
        }
    }
}

void tk_repeats_received(tk_repeats *r, const uint8_t *data, size_t size, double now)
{
    r->end_count = 0;
    tk_repeats_take(r, data, size, now);
    tk_repeats_see(r);
}
