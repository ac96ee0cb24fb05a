/* Repeated calls through whatever may happen to them, with a peer that says anything. A model knows of each call
 * whether it is repeated and whether it is under way, and each may end once. A second one, which gets what the peer
 * says in pieces, shows the same as the first. */
#include "../frames.h"
#include "../repeats.h"
#include "../tests/support.h"

#include <math.h>
#include <string.h>

#define MOST_CALLS 600
#define SAID (1u << 17)

static const uint8_t HEADERS[] = {0x83, 0x86}, HEAD[] = {0x88}, TAIL[] = {0x10, 1, 's', 1, '0'};

typedef struct {
    const uint8_t *data;
    size_t size;
} input;

/* What is known of the call in a place. */
typedef struct {
    bool is_there;
    bool is_under_way;
    uint32_t stream;
    uint64_t id; /* also of the last that was there */
} known_call;

typedef struct {
    uint64_t id;
    uint32_t code;
    int32_t why;
    double began;
    size_t head, data, tail;
    uint64_t digest;
} known_end;

typedef struct {
    tk_repeats *whole, *pieces;
    double now;
    known_call calls[MOST_CALLS];
    uint32_t free_places[MOST_CALLS];
    uint32_t count, free_count, added;
    uint32_t streams; /* begun on this connection */
} state;

static uint8_t said_bytes[SAID];
static known_end seen[4 * TK_REPEATS_AT_ONCE], other[4 * TK_REPEATS_AT_ONCE];

static uint8_t take(input *in)
{
    return in->size > 0 ? (in->size--, *in->data++) : 0;
}

static size_t keep_ends(tk_repeats *r, known_end *kept, size_t count)
{
    tk_repeats_view view = *tk_repeats_look(r);
    CHECK(view.end_count <= 2 * TK_REPEATS_AT_ONCE && count + view.end_count <= 4 * TK_REPEATS_AT_ONCE);
    for (size_t i = 0; i < view.end_count; i++) {
        const tk_end *e = &view.ends[i];
        size_t size = (size_t)e->head + e->data + e->tail;
        CHECK(size <= TK_REPEATS_ANSWER && (size == 0 || (e->why == TK_END_ANSWERED && e->answer != NULL)));
        uint64_t digest = 5381;
        for (size_t k = 0; k < size; k++)
            digest = digest * 33 + e->answer[k];
        kept[count++] = (known_end){e->id, e->code, e->why, e->began, e->head, e->data, e->tail, digest};
    }
    return count;
}

/* The call with this id, which has to be there. */
static known_call *call_of(state *s, uint64_t id)
{
    uint32_t place = (uint32_t)id;
    CHECK(place < s->count && s->calls[place].is_there && s->calls[place].id == id);
    return &s->calls[place];
}

static void forget(state *s, known_call *call)
{
    *call = (known_call){.id = call->id};
    s->free_places[s->free_count++] = (uint32_t)call->id;
}

/* Calls that a turn began stand in what is to be sent, with their place as body. */
static void find_begun(state *s, const uint8_t *out, size_t size)
{
    while (size > 0) {
        CHECK(size >= TK_FRAME_HEAD);
        tk_frame f = tk_read_frame(out);
        CHECK(size >= TK_FRAME_HEAD + f.size);
        if (f.kind == TK_FRAME_HEADERS) {
            CHECK(f.size == sizeof HEADERS && f.stream == 2 * s->streams++ + 1);
        } else if (f.kind == TK_FRAME_DATA) {
            CHECK(f.size >= 4 && f.stream == 2 * s->streams - 1 && f.flags == TK_FLAG_END_STREAM);
            uint32_t place = tk_read_be32(out + TK_FRAME_HEAD);
            CHECK(place < s->count && s->calls[place].is_there && !s->calls[place].is_under_way);
            s->calls[place].is_under_way = true;
            s->calls[place].stream = f.stream;
        } else {
            CHECK(f.kind == TK_FRAME_RST || f.kind == TK_FRAME_PING);
        }
        out += TK_FRAME_HEAD + f.size;
        size -= TK_FRAME_HEAD + f.size;
    }
}

/* Takes note of ends and of calls that passed. In a turn that loses the connection, some may have begun unseen. */
static void check(state *s, size_t ends, size_t other_ends, bool is_turn)
{
    CHECK(ends == other_ends);
    for (size_t i = 0; i < ends; i++) {
        known_end *a = &seen[i], *b = &other[i];
        CHECK(a->id == b->id && a->why == b->why && a->code == b->code && a->began == b->began);
        CHECK(a->head == b->head && a->data == b->data && a->tail == b->tail && a->digest == b->digest);
        known_call *call = call_of(s, a->id);
        bool is_unseen = is_turn && a->why == TK_END_LOST && a->began == s->now;
        CHECK(call->is_under_way == (a->why != TK_END_NOT_MADE) || is_unseen);
        forget(s, call);
    }
    tk_pass passed[64], same[64];
    for (size_t n; (n = tk_repeats_passed(s->whole, passed, 64)) > 0;) {
        CHECK(tk_repeats_passed(s->pieces, same, 64) == n);
        for (size_t i = 0; i < n; i++) {
            CHECK(passed[i].id == same[i].id && passed[i].seconds == same[i].seconds && passed[i].seconds >= 0);
            known_call *call = call_of(s, passed[i].id);
            CHECK(call->is_under_way);
            call->is_under_way = false;
        }
    }
    tk_repeats_view a = *tk_repeats_look(s->whole), b = *tk_repeats_look(s->pieces);
    CHECK(a.out_size <= TK_REPEATS_OUT && a.out_size == b.out_size && memcmp(a.out, b.out, a.out_size) == 0);
    CHECK(a.next == b.next && a.newest == b.newest && a.under_way == b.under_way && a.passed == 0 && b.passed == 0);
    CHECK(a.is_connected == b.is_connected && a.is_odd == b.is_odd && a.takes_calls == b.takes_calls);
    CHECK(!a.is_connected || !a.is_odd);
    uint32_t under_way = 0, there = 0;
    for (uint32_t place = 0; place < s->count; place++) {
        under_way += s->calls[place].is_under_way;
        there += s->calls[place].is_there;
    }
    CHECK(a.under_way == under_way && a.under_way <= TK_REPEATS_AT_ONCE);
    CHECK((a.newest > -INFINITY) == (under_way > 0) && (a.next < INFINITY) == (there > 0));
    CHECK(a.is_connected || (a.out_size == 0 && under_way == 0 && !a.takes_calls));
}

static void add(state *s, input *in, uint32_t count)
{
    double due = s->now + take(in) / 8.0, period = take(in) / 8.0, timeout = take(in) / 8.0;
    static uint8_t body[TK_REPEATS_BODY];
    size_t size = 4 + take(in) * 16;
    while (count-- > 0 && (s->free_count > 0 || s->count < MOST_CALLS)) {
        uint32_t place = s->free_count > 0 ? s->free_places[--s->free_count] : s->count++;
        uint64_t expected = (uint64_t)++s->added << 32 | place, id, same;
        tk_write_be32(body, place);
        CHECK(tk_repeats_add(s->whole, body, size, due, period, timeout, &id) == TK_OK);
        CHECK(tk_repeats_add(s->pieces, body, size, due, period, timeout, &same) == TK_OK);
        CHECK(id == expected && same == expected);
        s->calls[place] = (known_call){.is_there = true, .id = id};
    }
}

/* The last call in a place, or a number before it, which others may have had. */
static void stop(state *s, uint32_t place, bool is_other)
{
    double due, same;
    uint64_t id = (place < s->count ? s->calls[place].id : place) - ((uint64_t)is_other << 32);
    bool is_forgotten = tk_repeats_stop(s->whole, id, &due);
    CHECK(tk_repeats_stop(s->pieces, id, &same) == is_forgotten);
    bool is_there = place < s->count && s->calls[place].is_there && !is_other;
    CHECK(isnan(due) == !is_there && isnan(same) == !is_there && (!is_there || due == same));
    CHECK(is_forgotten == (is_there && !s->calls[place].is_under_way));
    if (is_forgotten)
        forget(s, &s->calls[place]);
}

static void turn(state *s, uint32_t together)
{
    tk_repeats_view before = *tk_repeats_look(s->whole);
    tk_repeats_turn(s->whole, s->now, together);
    tk_repeats_turn(s->pieces, s->now, together);
    tk_repeats_view after = *tk_repeats_look(s->whole);
    if (after.is_connected)
        find_begun(s, after.out + before.out_size, after.out_size - before.out_size);
    check(s, keep_ends(s->whole, seen, 0), keep_ends(s->pieces, other, 0), true);
}

static void receive(state *s, const uint8_t *bytes, size_t size)
{
    receive_exactly(s->whole, bytes, size, s->now);
    size_t ends = keep_ends(s->whole, seen, 0), others = 0, step = size > 2048 ? 700 : 1;
    for (size_t at = 0; at < size; at += step) {
        receive_exactly(s->pieces, bytes + at, size - at < step ? size - at : step, s->now);
        others = keep_ends(s->pieces, other, others);
    }
    if (size > 0)
        check(s, ends, others, false);
}

static void put(tk_outbox *out, uint8_t kind, uint8_t flags, uint32_t stream, const void *payload, size_t size)
{
    tk_frame frame = {.size = (uint32_t)size, .kind = kind, .flags = flags, .stream = stream};
    tk_put_frame(out, frame, payload);
}

static void put_answer(tk_outbox *out, uint32_t stream, uint32_t how)
{
    static const uint8_t FAILED[] = {0, 0, 0, 0, 2, 0x18, 1}, ZEROS[TK_REPEATS_ANSWER];
    static const uint8_t SAYS_MORE[] = {0, 0, 0, 0, 8, 0x0a, 2, 'o', 'k', 0x18, 0x80, 0x80, 0};
    bool is_whole = how % 4 != 3;
    put(out, TK_FRAME_HEADERS, is_whole ? TK_FLAG_END_HEADERS : TK_FLAG_END_HEADERS | TK_FLAG_END_STREAM, stream, HEAD,
        sizeof HEAD);
    if (!is_whole)
        return;
    if (how == 5)
        put(out, TK_FRAME_DATA, 0, stream, SAYS_MORE, sizeof SAYS_MORE);
    else if (how % 4 == 1)
        put(out, TK_FRAME_DATA, 0, stream, FAILED, sizeof FAILED);
    else
        put(out, TK_FRAME_DATA, how / 4 % 2, stream, ZEROS, how % 4 == 0 ? 5 : sizeof ZEROS - how / 4);
    put(out, TK_FRAME_HEADERS, TK_FLAG_END_HEADERS | TK_FLAG_END_STREAM, stream, TAIL, sizeof TAIL);
}

/* The stream of the n-th that is under way, or n. */
static uint32_t stream_of(const state *s, uint32_t n)
{
    for (uint32_t place = 0, left = n; place < s->count; place++)
        if (s->calls[place].is_under_way && left-- == 0)
            return s->calls[place].stream;
    return n;
}

/* One thing that the peer says, or several. */
static void say(state *s, input *in, uint32_t what, uint32_t how)
{
    static const uint8_t ZEROS[TK_FRAME_MOST];
    tk_outbox out = {.bytes = said_bytes, .room = sizeof said_bytes};
    uint8_t payload[16];
    if (what == 0) {
        put_answer(&out, stream_of(s, take(in)), how);
    } else if (what == 1) {
        for (uint32_t place = 0; place < s->count; place++)
            if (s->calls[place].is_under_way)
                put_answer(&out, s->calls[place].stream, how);
    } else if (what == 2) {
        uint8_t kind = take(in), flags = take(in);
        uint32_t stream = kind & 0x80 ? 0 : stream_of(s, take(in));
        for (uint32_t i = 0; i < how; i++)
            payload[i] = take(in);
        put(&out, kind & 0x7f, flags, stream, payload, how);
    } else if (what == 3) {
        for (uint32_t i = 0; i < how; i++)
            said_bytes[out.size++] = take(in);
    } else {
        for (uint32_t left = take(in) * 8; left > 0; left--) {
            if (how % 4 == 0)
                put(&out, TK_FRAME_SETTINGS, 0, 0, NULL, 0);
            else if (how % 4 == 1)
                put(&out, TK_FRAME_PING, 0, 0, ZEROS, 8);
            else if (how % 4 == 2)
                put(&out, TK_FRAME_DATA, 0, 2, ZEROS, sizeof ZEROS);
            else
                put(&out, TK_FRAME_WINDOW, 0, 0, "\0\1\0", 4);
        }
    }
    receive(s, said_bytes, out.size);
}

static void change_connection(state *s, bool is_new)
{
    tk_repeats *both[] = {s->whole, s->pieces};
    for (size_t i = 0; i < 2; i++)
        is_new ? tk_repeats_connected(both[i]) : tk_repeats_lost(both[i]);
    if (is_new)
        s->streams = 0;
    check(s, keep_ends(s->whole, seen, 0), keep_ends(s->pieces, other, 0), false);
}

static void learn(state *s, input *in, uint32_t how)
{
    uint8_t bytes[16];
    size_t size = how >> 1;
    for (size_t i = 0; i < size; i++)
        bytes[i] = take(in);
    tk_repeats *both[] = {s->whole, s->pieces};
    for (size_t i = 0; i < 2; i++) {
        if (size > 0) {
            tk_repeats_learn(both[i], how & 1, bytes, size);
        } else {
            tk_repeats_learn(both[i], 0, HEAD, sizeof HEAD);
            tk_repeats_learn(both[i], 1, TAIL, sizeof TAIL);
        }
    }
}

static void step(state *s, input *in)
{
    uint8_t op = take(in), how = op >> 4;
    switch (op & 15) {
    case 0:
        add(s, in, how + 1u);
        break;
    case 1:
        add(s, in, how * 20u);
        break;
    case 2:
        stop(s, how * 3u + take(in) * 2u, how == 15);
        break;
    case 3:
        if (how < 4)
            change_connection(s, how > 0);
        break;
    case 4:
    case 5:
    case 6:
        s->now += take(in) / 8.0;
        turn(s, how == 15 ? 1000 : how);
        break;
    case 7: {
        size_t size = how == 15 ? SIZE_MAX : how * 100u;
        tk_repeats_sent(s->whole, size);
        tk_repeats_sent(s->pieces, size);
        break;
    }
    case 8:
        learn(s, in, how);
        break;
    case 9:
    case 10:
        say(s, in, 0, how);
        break;
    case 11:
        say(s, in, 1, how);
        break;
    case 12:
    case 13:
        say(s, in, 2, how);
        break;
    case 14:
        say(s, in, 3, how);
        break;
    default:
        say(s, in, 4, how);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static state s; /* large */
    s = (state){.whole = tk_repeats_new(HEADERS, sizeof HEADERS), .pieces = tk_repeats_new(HEADERS, sizeof HEADERS)};
    CHECK(s.whole != NULL && s.pieces != NULL);
    input in = {data, size};
    change_connection(&s, true);
    while (in.size > 0)
        step(&s, &in);
    change_connection(&s, false);
    for (uint32_t place = 0; place < s.count; place++)
        CHECK(!s.calls[place].is_under_way);
    tk_repeats_free(s.whole);
    tk_repeats_free(s.pieces);
    return 0;
}
