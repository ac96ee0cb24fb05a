#include "repeats.h"

#include "frames.h"
#include "wire.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define AT_ONCE TK_REPEATS_AT_ONCE
#define NOBODY UINT32_MAX
#define MOST_WINDOW 0x7fffffff
#define FIRST_WINDOW 65535   /* of a connection and of a stream, before anything was said */
#define LAST_STREAM 0x40000000
#define ROOM (1u << 20)      /* bytes that came after which the peer is told that there is room for more */
#define PONG_PAUSE 10.0      /* seconds for which a ping waits for its answer, see PONG_PAUSE in cri/answers.py */
#define PONGS 8              /* as many wait; one more, and all are answered */
#define CANCEL 8             /* reason of a reset */
#define EXIT_CODE 3          /* field of an ExecSyncResponse */
#define PREFIX 5             /* bytes before a message */

/* What is repeated. */
typedef struct {
    double period;
    double timeout;
    double after;  /* when the next call is due; while one is under way */
    uint8_t *body; /* NULL: the place is free */
    uint32_t size;
    uint32_t next_free;
    bool is_under_way;
    bool is_stopped;
} repeat;

/* One that is under way. */
typedef struct {
    double began;
    double deadline;
    uint32_t id;
    uint32_t head, data, tail; /* bytes of the answer so far */
    bool has_head;
} call;

typedef struct {
    uint32_t size;
    uint8_t bytes[TK_REPEATS_BLOCK];
} block;

struct tk_repeats {
    double *due; /* of each repeat, side by side; infinite while a call is under way and where a place is free */
    repeat *repeats;
    uint32_t count, room;
    uint32_t first_free;
    uint32_t cursor; /* where to look for what is due first */

    uint32_t streams[AT_ONCE]; /* of the calls; 0: no call */
    call calls[AT_ONCE];
    uint32_t highest; /* no call stands here or behind */
    uint32_t under_way;

    bool is_open;
    bool is_going_away;
    uint32_t next_stream;
    uint32_t most;        /* calls at once, for the peer */
    uint32_t peer_window; /* for bytes of one request, and of all */
    int64_t window;
    uint32_t taken; /* bytes of data that came, and the peer was not told of */
    double pinged;  /* when the first ping came that is not answered */
    uint32_t pongs;

    block known[2][TK_REPEATS_BLOCKS]; /* of headers and of trailers */
    uint32_t oldest[2];

    uint32_t end_count;
    uint32_t passed_first, passed;
    uint32_t in_size;
    tk_outbox out;
    uint32_t headers_size;
    uint8_t pong[PONGS][8];
    uint8_t headers[TK_REPEATS_BODY];
    tk_end ends[2 * AT_ONCE]; /* a turn tells of each call under way and of as many not made */
    tk_pass passes[TK_REPEATS_PASSED];
    uint8_t in[TK_FRAME_HEAD + TK_FRAME_MOST]; /* the beginning of a frame */
    uint8_t answers[AT_ONCE][TK_REPEATS_ANSWER];
    uint8_t out_bytes[TK_REPEATS_OUT];
};

/* What is sent first: no table of headers, no pushes, and the largest window there is. */
static const uint8_t HELLO[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                               "\0\0\14\4\0\0\0\0\0\0\1\0\0\0\0\0\2\0\0\0\0"
                               "\0\0\4\10\0\0\0\0\0\x7f\xff\0\0";

tk_repeats *tk_repeats_new(const uint8_t *headers, size_t size)
{
    if (size > TK_REPEATS_BODY)
        return NULL;
    /* Pages of it that are never used are never there: what a busy moment needs comes last. */
    tk_repeats *r = calloc(1, sizeof *r);
    if (r == NULL)
        return NULL;
    r->first_free = NOBODY;
    r->out = (tk_outbox){.bytes = r->out_bytes, .room = sizeof r->out_bytes};
    r->headers_size = (uint32_t)size;
    memcpy(r->headers, headers, size);
    return r;
}

void tk_repeats_free(tk_repeats *r)
{
    if (r == NULL)
        return;
    for (uint32_t id = 0; id < r->count; id++)
        free(r->repeats[id].body);
    free(r->repeats);
    free(r->due);
    free(r);
}

/* Repeats and calls. */

static bool grow(tk_repeats *r)
{
    if (r->room > UINT32_MAX / 4)
        return false;
    uint32_t room = r->room > 0 ? 2 * r->room : 64;
    double *due = realloc(r->due, room * sizeof *due);
    if (due == NULL)
        return false;
    r->due = due;
    repeat *repeats = realloc(r->repeats, room * sizeof *repeats);
    if (repeats == NULL)
        return false;
    r->repeats = repeats;
    r->room = room;
    return true;
}

int tk_repeats_add(tk_repeats *r, const uint8_t *body, size_t size, double due, double period, double timeout,
                   uint32_t *id)
{
    r->end_count = 0;
    if (size > TK_REPEATS_BODY || (r->first_free == NOBODY && r->count == r->room && !grow(r)))
        return TK_NOMEM;
    uint8_t *kept = malloc(size + 1);
    if (kept == NULL)
        return TK_NOMEM;
    memcpy(kept, body, size);
    if (r->first_free != NOBODY) {
        *id = r->first_free;
        r->first_free = r->repeats[*id].next_free;
    } else {
        *id = r->count++;
    }
    r->repeats[*id] = (repeat){.period = period, .timeout = timeout, .body = kept, .size = (uint32_t)size};
    r->due[*id] = due;
    return TK_OK;
}

static void forget(tk_repeats *r, uint32_t id)
{
    free(r->repeats[id].body);
    r->repeats[id].body = NULL;
    r->repeats[id].next_free = r->first_free;
    r->first_free = id;
    r->due[id] = INFINITY;
}

bool tk_repeats_stop(tk_repeats *r, uint32_t id, double *due)
{
    r->end_count = 0;
    *due = NAN;
    if (id >= r->count || r->repeats[id].body == NULL)
        return false;
    if (r->repeats[id].is_under_way) {
        r->repeats[id].is_stopped = true;
        *due = r->repeats[id].after;
        return false;
    }
    *due = r->due[id];
    forget(r, id);
    return true;
}

/* Somebody is to hear of this end, and the call is no longer repeated. */
static void tell(tk_repeats *r, tk_end end)
{
    r->ends[r->end_count++] = end;
    forget(r, end.id);
}

static void remove_call(tk_repeats *r, uint32_t i)
{
    r->streams[i] = 0;
    r->under_way--;
    while (r->highest > 0 && r->streams[r->highest - 1] == 0)
        r->highest--;
}

/* A call ended without an answer. */
static void fail_call(tk_repeats *r, uint32_t i, int why, uint32_t code)
{
    call *c = &r->calls[i];
    remove_call(r, i);
    tell(r, (tk_end){.began = c->began, .id = c->id, .why = why, .code = code});
}

static bool cancel(tk_repeats *r, uint32_t stream)
{
    uint8_t reason[4];
    tk_write_be32(reason, CANCEL);
    return tk_put_frame(&r->out, (tk_frame){.size = 4, .kind = TK_FRAME_RST, .stream = stream}, reason);
}

/* The connection. */

static void lose_calls(tk_repeats *r, uint32_t last_stream)
{
    for (uint32_t i = r->highest; i-- > 0;)
        if (r->streams[i] > last_stream)
            fail_call(r, i, TK_END_LOST, 0);
}

static void lose_connection(tk_repeats *r)
{
    lose_calls(r, 0);
    r->is_open = false;
    r->out.size = 0;
    r->pongs = 0; /* or a turn would answer them to nobody */
}

void tk_repeats_lost(tk_repeats *r)
{
    r->end_count = 0;
    lose_connection(r);
}

void tk_repeats_connected(tk_repeats *r)
{
    tk_repeats_lost(r);
    r->is_open = true;
    r->is_going_away = false;
    r->next_stream = 1;
    r->most = AT_ONCE;
    r->peer_window = FIRST_WINDOW;
    r->window = FIRST_WINDOW;
    r->taken = r->in_size = 0;
    r->out.size = sizeof HELLO - 1;
    memcpy(r->out.bytes, HELLO, r->out.size);
}

static bool takes_calls(const tk_repeats *r)
{
    return r->is_open && !r->is_going_away && r->next_stream <= LAST_STREAM;
}

void tk_repeats_sent(tk_repeats *r, size_t size)
{
    r->end_count = 0;
    tk_outbox_sent(&r->out, size);
}

static bool answer_pings(tk_repeats *r)
{
    for (uint32_t i = 0; i < r->pongs; i++)
        if (!tk_put_frame(&r->out, (tk_frame){.size = 8, .kind = TK_FRAME_PING, .flags = TK_FLAG_ACK}, r->pong[i]))
            return false;
    r->pongs = 0;
    return true;
}

/* Begins the call that is due; false if that cannot be now. */
static bool begin(tk_repeats *r, uint32_t id, double now)
{
    repeat *each = &r->repeats[id];
    size_t needed = 2 * TK_FRAME_HEAD + r->headers_size + each->size;
    if (!takes_calls(r) || r->under_way >= r->most || each->size > r->peer_window || each->size > r->window ||
        r->out.room - r->out.size < needed)
        return false;
    uint32_t i = 0, stream = r->next_stream;
    while (r->streams[i] != 0)
        i++;
    r->next_stream += 2;
    tk_frame head = {.size = r->headers_size, .stream = stream, .kind = TK_FRAME_HEADERS, .flags = TK_FLAG_END_HEADERS};
    tk_frame data = {.size = each->size, .stream = stream, .kind = TK_FRAME_DATA, .flags = TK_FLAG_END_STREAM};
    tk_put_frame(&r->out, head, r->headers);
    tk_put_frame(&r->out, data, each->body);
    r->window -= each->size;
    r->streams[i] = stream;
    r->calls[i] = (call){.began = now, .deadline = now + each->timeout, .id = id};
    r->highest = r->highest > i ? r->highest : i + 1;
    r->under_way++;
    each->is_under_way = true;
    each->after = r->due[id] + each->period;
    r->due[id] = INFINITY;
    return true;
}

static void end_overdue(tk_repeats *r, double now)
{
    for (uint32_t i = r->highest; i-- > 0;) {
        if (r->streams[i] == 0 || r->calls[i].deadline > now)
            continue;
        bool is_told = cancel(r, r->streams[i]);
        fail_call(r, i, TK_END_OVERDUE, 0);
        if (!is_told) {
            lose_connection(r);
            return;
        }
    }
}

void tk_repeats_turn(tk_repeats *r, double now, uint32_t together)
{
    r->end_count = 0;
    end_overdue(r, now);
    uint32_t left = together < AT_ONCE ? together : AT_ONCE;
    for (uint32_t n = r->count, id = r->cursor; n > 0 && left > 0; n--, id++) {
        if (id >= r->count)
            id = 0;
        if (!(r->due[id] <= now) || r->repeats[id].body == NULL || r->repeats[id].is_under_way)
            continue; /* the last two for moments that are no numbers */
        left--;
        r->cursor = id + 1;
        if (r->pongs > 0 && now - r->pinged >= PONG_PAUSE && !answer_pings(r))
            lose_connection(r);
        if (!begin(r, id, now))
            tell(r, (tk_end){.began = now, .id = id, .why = TK_END_NOT_MADE});
    }
}

/* Answers. */

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
    r->end_count = 0;
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
    repeat *each = &r->repeats[c->id];
    remove_call(r, i);
    if (each->is_stopped || r->passed == TK_REPEATS_PASSED || !passes(r, i)) {
        tell(r, (tk_end){.began = c->began,
                         .id = c->id,
                         .why = TK_END_ANSWERED,
                         .head = c->head,
                         .data = c->data,
                         .tail = c->tail,
                         .answer = r->answers[i]});
        return;
    }
    uint32_t at = (r->passed_first + r->passed++) % TK_REPEATS_PASSED;
    r->passes[at] = (tk_pass){.seconds = now - c->began, .id = c->id};
    each->is_under_way = false;
    r->due[c->id] = each->after > now ? each->after : now;
}

/* The next bytes of an answer; `part` counts those of their kind. False if the connection is broken. */
static bool take(tk_repeats *r, uint32_t i, uint32_t *part, tk_frame frame, const uint8_t *payload, double now)
{
    call *c = &r->calls[i];
    bool is_last = frame.flags & TK_FLAG_END_STREAM;
    size_t before = (size_t)c->head + c->data + c->tail;
    if (frame.size > TK_REPEATS_ANSWER - before) {
        bool is_told = is_last || cancel(r, frame.stream);
        fail_call(r, i, TK_END_TOO_LONG, 0);
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
    if (r->pongs == PONGS && !answer_pings(r))
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
            fail_call(r, i, TK_END_RESET, tk_read_be32(payload));
        return true;
    case TK_FRAME_SETTINGS:
        return take_settings(r, frame, payload);
    case TK_FRAME_PING:
        return take_ping(r, frame, payload, now);
    case TK_FRAME_GOAWAY:
        if (is_stream || frame.size < 8)
            return false;
        r->is_going_away = true;
        lose_calls(r, tk_read_be32(payload) & MOST_WINDOW);
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

void tk_repeats_received(tk_repeats *r, const uint8_t *data, size_t size, double now)
{
    r->end_count = 0;
    while (r->is_open && size > 0) {
        size_t n = sizeof r->in - r->in_size;
        n = n < size ? n : size;
        memcpy(r->in + r->in_size, data, n);
        r->in_size += (uint32_t)n;
        data += n;
        size -= n;
        if (!take_frames(r, now))
            lose_connection(r);
    }
}

/* What there is. */

void tk_repeats_look(tk_repeats *r, tk_repeats_view *view)
{
    *view = (tk_repeats_view){
        .ends = r->ends,
        .end_count = r->end_count,
        .out = r->out.bytes,
        .out_size = r->out.size,
        .next = INFINITY,
        .newest = -INFINITY,
        .under_way = r->under_way,
        .passed = r->passed,
        .is_connected = r->is_open,
        .takes_calls = takes_calls(r),
    };
    for (uint32_t id = 0; id < r->count; id++)
        if (r->due[id] < view->next)
            view->next = r->due[id];
    for (uint32_t i = 0; i < r->highest; i++) {
        if (r->streams[i] == 0)
            continue;
        if (r->calls[i].deadline < view->next)
            view->next = r->calls[i].deadline;
        if (r->calls[i].began > view->newest)
            view->newest = r->calls[i].began;
    }
}

size_t tk_repeats_passed(tk_repeats *r, tk_pass *passed, size_t room)
{
    size_t count = 0;
    r->end_count = 0;
    for (; count < room && r->passed > 0; count++, r->passed--) {
        passed[count] = r->passes[r->passed_first];
        r->passed_first = (r->passed_first + 1) % TK_REPEATS_PASSED;
    }
    return count;
}
