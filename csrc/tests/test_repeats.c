/* Repeated calls by themselves: memory, places that are used again, limits, a thread that serves them. What the
 * calls mean is tested from Python against the twin. */
#include "frames.h"
#include "repeats.h"
#include "support.h"

#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HELLO_SIZE 58
#define REQUEST_SIZE (2 * TK_FRAME_HEAD + sizeof HEADERS + sizeof BODY)

static const uint8_t HEADERS[] = {0x83, 0x86}, BODY[] = {0, 0, 0, 0, 0};
static const uint8_t HEAD[] = {0x88}, TAIL[] = {0x10, 1, 's', 1, '0'}, PASSED[] = {0, 0, 0, 0, 0};

/* Of what was added after so many others. */
static uint64_t nth(uint32_t added, uint32_t place)
{
    return (uint64_t)(added + 1) << 32 | place;
}

static tk_repeats_view look(tk_repeats *r)
{
    return *tk_repeats_look(r);
}

static tk_repeats *new_repeats(bool is_connected, uint32_t count)
{
    tk_repeats *r = tk_repeats_new(HEADERS, sizeof HEADERS);
    CHECK(r != NULL);
    tk_repeats_learn(r, 0, HEAD, sizeof HEAD);
    tk_repeats_learn(r, 1, TAIL, sizeof TAIL);
    if (is_connected) {
        tk_repeats_connected(r);
        CHECK(look(r).out_size == HELLO_SIZE);
        tk_repeats_sent(r, HELLO_SIZE);
    }
    uint64_t id;
    for (uint32_t i = 0; i < count; i++)
        CHECK(tk_repeats_add(r, BODY, sizeof BODY, 1.0, 10.0, 5.0, &id) == TK_OK && id == nth(i, i));
    return r;
}

static void put(tk_outbox *out, uint8_t kind, uint8_t flags, uint32_t stream, const void *payload, size_t size)
{
    tk_frame frame = {.size = (uint32_t)size, .kind = kind, .flags = flags, .stream = stream};
    CHECK(tk_put_frame(out, frame, payload));
}

static void put_answer(tk_outbox *out, uint32_t stream, const void *data, size_t size)
{
    put(out, TK_FRAME_HEADERS, TK_FLAG_END_HEADERS, stream, HEAD, sizeof HEAD);
    put(out, TK_FRAME_DATA, 0, stream, data, size);
    put(out, TK_FRAME_HEADERS, TK_FLAG_END_HEADERS | TK_FLAG_END_STREAM, stream, TAIL, sizeof TAIL);
}

static void answer(tk_repeats *r, uint32_t stream, double now)
{
    uint8_t bytes[100];
    tk_outbox out = {.bytes = bytes, .room = sizeof bytes};
    put_answer(&out, stream, PASSED, sizeof PASSED);
    receive_exactly(r, bytes, out.size, now);
}

static void test_frames(void)
{
    uint8_t *bytes = malloc(2 * TK_FRAME_HEAD + 3);
    CHECK(bytes != NULL);
    tk_outbox out = {.bytes = bytes, .room = 2 * TK_FRAME_HEAD + 3};
    tk_frame frame = {.size = 3, .kind = TK_FRAME_DATA, .flags = TK_FLAG_END_STREAM, .stream = 0x7fffffff};
    CHECK(tk_put_frame(&out, frame, (const uint8_t *)"abc") && out.size == TK_FRAME_HEAD + 3);
    CHECK(memcmp(bytes, "\0\0\3\0\1\x7f\xff\xff\xff" "abc", out.size) == 0);
    CHECK(!tk_put_frame(&out, (tk_frame){.size = 1}, (const uint8_t *)"d") && out.size == TK_FRAME_HEAD + 3);
    CHECK(tk_put_frame(&out, (tk_frame){.kind = TK_FRAME_SETTINGS, .flags = TK_FLAG_ACK}, NULL));
    CHECK(out.size == out.room && !tk_put_frame(&out, (tk_frame){0}, NULL));
    tk_outbox_sent(&out, TK_FRAME_HEAD + 3);
    frame = tk_read_frame(bytes);
    CHECK(out.size == TK_FRAME_HEAD && frame.kind == TK_FRAME_SETTINGS && frame.flags == 1 && frame.size == 0);
    tk_outbox_sent(&out, 1000);
    CHECK(out.size == 0);
    frame = tk_read_frame((const uint8_t *)"\xff\xfe\xfd\x09\x88\xff\xff\xff\xff");
    CHECK(frame.size == 0xfffefd && frame.kind == 9 && frame.flags == 0x88 && frame.stream == 0x7fffffff);
    tk_write_be32(bytes, 0x80000001);
    CHECK(tk_read_be32(bytes) == 0x80000001 && bytes[0] == 0x80 && bytes[3] == 1);
    free(bytes);
}

static void test_a_life_of_calls(void)
{
    tk_repeats *r = new_repeats(true, 2);
    tk_repeats_turn(r, 1.5, 10);
    tk_repeats_view view = look(r);
    CHECK(view.under_way == 2 && view.end_count == 0 && view.newest == 1.5 && view.next == 6.5);
    CHECK(view.out_size == 2 * REQUEST_SIZE && memcmp(view.out + TK_FRAME_HEAD, HEADERS, sizeof HEADERS) == 0);
    tk_repeats_sent(r, view.out_size);
    answer(r, 1, 2.0);
    view = look(r);
    CHECK(view.under_way == 1 && view.passed == 1 && view.end_count == 0 && view.out_size == 0);
    uint8_t bytes[100];
    tk_outbox out = {.bytes = bytes, .room = sizeof bytes};
    put_answer(&out, 3, "\0\0\0\0\2\x18\1", 7);
    for (size_t i = 0; i < out.size; i++) {
        receive_exactly(r, bytes + i, 1, 2.0);
        view = look(r);
        CHECK(view.end_count == (i + 1 == out.size));
    }
    const tk_end *end = view.ends;
    CHECK(end->id == nth(1, 1) && end->why == TK_END_ANSWERED && end->head == sizeof HEAD && end->tail == sizeof TAIL);
    CHECK(end->began == 1.5 && end->data == 7 && memcmp(end->answer + end->head, "\0\0\0\0\2\x18\1", 7) == 0);
    CHECK(memcmp(end->answer + end->head + end->data, TAIL, sizeof TAIL) == 0);
    CHECK(view.next == 11.0 && view.under_way == 0 && view.newest == -INFINITY);
    tk_pass passed[3];
    CHECK(tk_repeats_passed(r, passed, 0) == 0 && look(r).passed == 1);
    CHECK(tk_repeats_passed(r, passed, 3) == 1 && passed[0].id == nth(0, 0) && passed[0].seconds == 0.5);
    CHECK(tk_repeats_passed(r, passed, 3) == 0 && look(r).end_count <= 1);
    tk_repeats_free(r);
    tk_repeats_free(NULL);
}

static void test_places_are_used_again(void)
{
    enum { COUNT = 5000 };
    tk_repeats *r = new_repeats(false, COUNT);
    double due;
    uint64_t id, nobody[] = {0, 1, UINT32_MAX, UINT64_MAX, nth(COUNT, COUNT), nth(0, 1), nth(1, 0)};
    for (size_t i = 0; i < sizeof nobody / sizeof *nobody; i++)
        CHECK(!tk_repeats_stop(r, nobody[i], &due) && isnan(due));
    for (uint32_t i = 0; i < COUNT; i += 3) {
        CHECK(tk_repeats_stop(r, nth(i, i), &due) && due == 1.0);
        CHECK(!tk_repeats_stop(r, nth(i, i), &due) && isnan(due));
    }
    uint8_t *body = malloc(TK_REPEATS_BODY + 1);
    CHECK(body != NULL);
    memset(body, 1, TK_REPEATS_BODY + 1);
    CHECK(tk_repeats_add(r, body, TK_REPEATS_BODY + 1, 0.5, 1.0, 1.0, &id) == TK_NOMEM);
    uint32_t added = COUNT;
    static uint64_t ids[COUNT + 1];
    for (uint32_t i = 0; i < COUNT; i++)
        ids[i] = nth(i, i);
    for (uint32_t i = COUNT; i-- > 0;) {
        if (i % 3 != 0)
            continue;
        CHECK(tk_repeats_add(r, body, i % TK_REPEATS_BODY, 0.5, 1.0, 1.0, &ids[i]) == TK_OK);
        CHECK(ids[i] == nth(added++, i));
    }
    CHECK(tk_repeats_add(r, body, TK_REPEATS_BODY, 0.5, 1.0, 1.0, &ids[COUNT]) == TK_OK);
    CHECK(ids[COUNT] == nth(added, COUNT));
    free(body);
    CHECK(look(r).next == 0.5);
    for (uint32_t i = 0; i < COUNT; i += 3) /* the place is another's */
        CHECK(!tk_repeats_stop(r, nth(i, i), &due) && isnan(due));
    for (uint32_t i = 0; i <= COUNT; i++)
        CHECK(tk_repeats_stop(r, ids[i], &due));
    CHECK(look(r).next == INFINITY);
    tk_repeats_turn(r, 1e9, TK_REPEATS_AT_ONCE);
    CHECK(look(r).end_count == 0);
    tk_repeats_free(r);
    CHECK(tk_repeats_new(NULL, TK_REPEATS_BODY + 1) == NULL);
}

static void test_no_connection(void)
{
    tk_repeats *r = new_repeats(false, 3 * TK_REPEATS_AT_ONCE);
    CHECK(!look(r).is_connected && !look(r).takes_calls && look(r).out_size == 0);
    answer(r, 1, 0.0);
    tk_repeats_turn(r, 0.5, 1000);
    CHECK(look(r).end_count == 0 && look(r).next == 1.0);
    for (uint32_t round = 0; round < 3; round++) {
        tk_repeats_turn(r, 1.0, 1000);
        tk_repeats_view view = look(r);
        CHECK(view.end_count == TK_REPEATS_AT_ONCE && view.out_size == 0 && view.under_way == 0);
        for (uint32_t i = 0; i < view.end_count; i++)
            CHECK(view.ends[i].why == TK_END_NOT_MADE &&
                  view.ends[i].id == nth(round * TK_REPEATS_AT_ONCE + i, round * TK_REPEATS_AT_ONCE + i));
    }
    CHECK(look(r).next == INFINITY);
    tk_repeats_free(r);
}

/* Everyone's turn comes; as many ends as there can be are told at once. */
static void test_all_places(void)
{
    tk_repeats *r = new_repeats(true, 3 * TK_REPEATS_AT_ONCE);
    tk_repeats_turn(r, 1.0, UINT32_MAX);
    tk_repeats_view view = look(r);
    CHECK(view.under_way == TK_REPEATS_AT_ONCE && view.out_size == TK_REPEATS_AT_ONCE * REQUEST_SIZE);
    tk_repeats_sent(r, view.out_size);
    uint8_t bytes[9 * (8 + TK_FRAME_HEAD)];
    tk_outbox out = {.bytes = bytes, .room = sizeof bytes};
    put(&out, TK_FRAME_GOAWAY, 0, 0, "\0\0\2\0\0\0\0", 8); /* all of them may end */
    receive_exactly(r, bytes, out.size, 1.0);
    CHECK(look(r).end_count == 0 && !look(r).takes_calls && look(r).is_connected);
    tk_repeats_turn(r, 6.0, UINT32_MAX);
    view = look(r);
    CHECK(view.end_count == 2 * TK_REPEATS_AT_ONCE && view.under_way == 0);
    CHECK(view.out_size == TK_REPEATS_AT_ONCE * (TK_FRAME_HEAD + 4));
    tk_repeats_free(r);
}

static void test_nobody_reads(void)
{
    tk_repeats *r = new_repeats(true, 1);
    uint8_t bytes[1 << 17];
    tk_outbox out = {.bytes = bytes, .room = sizeof bytes};
    size_t most = TK_REPEATS_OUT / TK_FRAME_HEAD;
    tk_repeats_turn(r, 1.0, 1);
    tk_repeats_sent(r, look(r).out_size);
    for (size_t i = 0; i < most; i++)
        put(&out, TK_FRAME_SETTINGS, 0, 0, NULL, 0);
    receive_exactly(r, bytes, out.size, 1.0);
    CHECK(look(r).out_size == most * TK_FRAME_HEAD && look(r).is_connected);
    receive_exactly(r, bytes, 2 * TK_FRAME_HEAD, 1.0);
    tk_repeats_view view = look(r);
    CHECK(!view.is_connected && view.end_count == 1 && view.ends[0].why == TK_END_LOST && view.out_size == 0);
    tk_repeats_connected(r);
    uint64_t id;
    CHECK(tk_repeats_add(r, BODY, sizeof BODY, 2.0, 1.0, 1.0, &id) == TK_OK && id == nth(1, 0));
    tk_repeats_sent(r, HELLO_SIZE);
    tk_repeats_turn(r, 2.0, 1);
    tk_repeats_sent(r, look(r).out_size);
    receive_exactly(r, bytes, most * TK_FRAME_HEAD, 2.0);
    tk_repeats_turn(r, 3.0, 1); /* overdue, and no room to break it off */
    view = look(r);
    CHECK(!view.is_connected && view.end_count == 1 && view.ends[0].why == TK_END_OVERDUE && view.out_size == 0);
    /* A ping of a connection that is gone is not answered. */
    tk_repeats_connected(r);
    out.size = 0;
    put(&out, TK_FRAME_PING, 0, 0, "12345678", 8);
    receive_exactly(r, bytes, out.size, 3.0);
    tk_repeats_lost(r);
    CHECK(tk_repeats_add(r, BODY, sizeof BODY, 20.0, 1.0, 1.0, &id) == TK_OK);
    tk_repeats_turn(r, 20.0, 1);
    CHECK(look(r).end_count == 1 && look(r).out_size == 0);
    tk_repeats_free(r);
}

/* Frames of the largest size, answers that are as long as they may be, and many lives after another. */
static void test_many_answers(void)
{
    static uint8_t bytes[1 << 17], data[TK_FRAME_MOST];
    tk_repeats *r = new_repeats(true, 50);
    uint32_t stream = 1, said = 0;
    for (uint32_t round = 0; round < 2000; round++) {
        double now = 1.0 + 10.0 * round;
        tk_repeats_turn(r, now, TK_REPEATS_AT_ONCE);
        tk_repeats_view view = look(r);
        CHECK(view.under_way == 50 && view.end_count == 0);
        tk_repeats_sent(r, view.out_size);
        tk_outbox out = {.bytes = bytes, .room = sizeof bytes};
        for (uint32_t i = 0; i < 50; i++)
            put_answer(&out, stream + 2 * ((i * 7 + round) % 50), PASSED, sizeof PASSED);
        if (round % 100 == 0)
            put(&out, TK_FRAME_DATA, 0, 7, data, sizeof data);
        put(&out, TK_FRAME_WINDOW, 0, 0, "\0\0\1", 4);
        size_t half = out.size * (round % 97) / 97;
        receive_exactly(r, bytes, half, now);
        receive_exactly(r, bytes + half, out.size - half, now);
        stream += 100;
        view = look(r);
        CHECK(view.is_connected && view.end_count == 0 && view.under_way == 0);
        tk_pass passed[64];
        for (size_t n; (n = tk_repeats_passed(r, passed, 64)) > 0;)
            said += (uint32_t)n;
    }
    CHECK(said == 2000 * 50);
    tk_repeats_turn(r, 1e6, 2);
    size_t most = TK_REPEATS_ANSWER - sizeof HEAD - sizeof TAIL;
    for (size_t more = 0; more < 2; more++, stream += 2) {
        tk_outbox out = {.bytes = bytes, .room = sizeof bytes};
        put_answer(&out, stream, data, most + more);
        receive_exactly(r, bytes, out.size, 1e6);
        tk_repeats_view view = look(r);
        CHECK(view.end_count == 1 && view.ends[0].why == (more ? TK_END_TOO_LONG : TK_END_ANSWERED));
    }
    tk_repeats_free(r);
}

static void test_learning(void)
{
    static const uint8_t long_one[TK_REPEATS_BLOCK + 1] = {1};
    tk_repeats *r = new_repeats(true, 1);
    tk_repeats_learn(r, 0, NULL, 0);
    tk_repeats_learn(r, 0, long_one, sizeof long_one);
    for (uint8_t i = 0; i < TK_REPEATS_BLOCKS - 1; i++)
        for (int again = 0; again < 2; again++)
            tk_repeats_learn(r, 0, (const uint8_t[]){200, i}, 2);
    tk_repeats_turn(r, 1.0, 1);
    answer(r, 1, 1.0);
    CHECK(look(r).passed == 1);
    tk_repeats_learn(r, 0, long_one, TK_REPEATS_BLOCK); /* the first one goes */
    tk_repeats_turn(r, 11.0, 1);
    answer(r, 3, 11.0);
    CHECK(look(r).passed == 1 && look(r).end_count == 1);
    tk_repeats_free(r);
}

/* Ends stay until something else can end; the view shows at each moment what is so. */
static void test_what_is_shown(void)
{
    tk_repeats *r = new_repeats(true, 2);
    const tk_repeats_view *view = tk_repeats_look(r);
    tk_repeats_turn(r, 1.0, 10);
    receive_exactly(r, (const uint8_t *)"HTTP/1.1 400", 12, 1.0);
    CHECK(view->end_count == 2 && view->is_odd && !view->is_connected);
    uint64_t id;
    double due;
    tk_pass passed;
    CHECK(tk_repeats_add(r, BODY, sizeof BODY, 2.0, 1.0, 1.0, &id) == TK_OK && view->next == 2.0);
    CHECK(tk_repeats_stop(r, id, &due) && view->next == INFINITY);
    CHECK(!tk_repeats_stop(r, id, &due) && tk_repeats_passed(r, &passed, 1) == 0);
    tk_repeats_learn(r, 0, BODY, sizeof BODY);
    tk_repeats_sent(r, 1);
    CHECK(view->end_count == 2 && view->ends[0].id == nth(1, 1) && view->ends[1].id == nth(0, 0));
    tk_repeats_lost(r);
    CHECK(view->end_count == 0 && view->is_odd);
    tk_repeats_connected(r);
    CHECK(!view->is_odd && view->is_connected && view == tk_repeats_look(r));
    tk_repeats_free(r);
}

/* Serving. */

typedef struct {
    tk_repeats *repeats;
    int socket, peer, event;
    pthread_t thread;
} served;

static double now_of(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *work(void *given)
{
    served *s = given;
    tk_repeats_serve(s->repeats, s->socket, s->event, 0.0);
    return NULL;
}

static void start(served *s)
{
    CHECK(pthread_create(&s->thread, NULL, work, s) == 0);
}

static served new_served(void)
{
    int both[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, both) == 0);
    struct timeval soon = {.tv_sec = 5};
    CHECK(setsockopt(both[1], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
    served s = {.repeats = new_repeats(true, 0), .socket = both[0], .peer = both[1]};
    CHECK((s.event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) >= 0);
    return s;
}

static void free_served(served *s)
{
    tk_repeats_free(s->repeats);
    CHECK(close(s->socket) == 0 && close(s->peer) == 0 && close(s->event) == 0);
}

static uint64_t add_now(served *s, double period, double timeout)
{
    uint64_t id;
    CHECK(tk_repeats_add(s->repeats, BODY, sizeof BODY, now_of(), period, timeout, &id) == TK_OK);
    return id;
}

/* The peer reads so many requests; the stream of the last. */
static uint32_t hear(served *s, uint32_t count)
{
    uint32_t stream = 0;
    for (uint8_t bytes[REQUEST_SIZE]; count > 0; count--) {
        CHECK(recv(s->peer, bytes, sizeof bytes, MSG_WAITALL) == sizeof bytes);
        tk_frame frame = tk_read_frame(bytes);
        CHECK(frame.kind == TK_FRAME_HEADERS && frame.size == sizeof HEADERS);
        stream = frame.stream;
    }
    return stream;
}

static void say(served *s, uint32_t stream, const void *data, size_t size)
{
    uint8_t bytes[100];
    tk_outbox out = {.bytes = bytes, .room = sizeof bytes};
    put_answer(&out, stream, data, size);
    CHECK(send(s->peer, bytes, out.size, 0) == (ssize_t)out.size);
}

static void test_serving(void)
{
    served s = new_served();
    tk_repeats_leave(s.repeats);
    work(&s);
    CHECK(look(s.repeats).end_count == 0);
    start(&s);
    uint64_t id = add_now(&s, 0.01, 5.0), other;
    tk_pass passed;
    for (uint32_t round = 0; round < 3; round++) {
        CHECK(hear(&s, 1) == 2 * round + 1);
        say(&s, 2 * round + 1, PASSED, sizeof PASSED);
        while (tk_repeats_passed(s.repeats, &passed, 1) == 0)
            usleep(1000);
        CHECK(passed.id == id && passed.seconds >= 0);
    }
    CHECK(hear(&s, 1) == 7);
    double due;
    CHECK(tk_repeats_add(s.repeats, BODY, sizeof BODY, now_of() + 1e9, 1.0, 1.0, &other) == TK_OK);
    CHECK(tk_repeats_stop(s.repeats, other, &due) && !tk_repeats_stop(s.repeats, id, &due) && due > 0);
    say(&s, 7, PASSED, sizeof PASSED);
    CHECK(pthread_join(s.thread, NULL) == 0);
    tk_repeats_view view = look(s.repeats);
    CHECK(view.end_count == 1 && view.ends[0].id == id && view.ends[0].why == TK_END_ANSWERED && view.passed == 0);
    id = add_now(&s, 10.0, 0.05);
    work(&s);
    view = look(s.repeats);
    CHECK(view.end_count == 1 && view.ends[0].id == id && view.ends[0].why == TK_END_OVERDUE && view.out_size == 0);
    uint8_t frame[TK_FRAME_HEAD + 4];
    CHECK(hear(&s, 1) == 9 && recv(s.peer, frame, sizeof frame, MSG_WAITALL) == sizeof frame);
    CHECK(tk_read_frame(frame).kind == TK_FRAME_RST && tk_read_frame(frame).stream == 9);
    id = add_now(&s, 10.0, 5.0);
    CHECK(shutdown(s.peer, SHUT_WR) == 0);
    work(&s); /* no end, but a call that wants a connection */
    view = look(s.repeats);
    CHECK(view.end_count == 0 && !view.is_connected && !view.is_odd && tk_repeats_stop(s.repeats, id, &due));
    free_served(&s);
}

/* Places come and go, and their memory moves, while others are served. */
static void test_serving_while_others_add(void)
{
    enum { COUNT = TK_REPEATS_AT_ONCE - 6 }; /* none of them has no place */
    served s = new_served();
    static uint64_t ids[COUNT];
    start(&s);
    for (uint32_t i = 0; i < COUNT; i++) {
        ids[i] = add_now(&s, 0.01, 60.0);
        if (i % 20 == 0)
            say(&s, hear(&s, 1), PASSED, sizeof PASSED); /* which begins at the next moment */
    }
    double due;
    uint32_t told, left = 0;
    for (uint32_t i = 0; i < COUNT; i++)
        left += !tk_repeats_stop(s.repeats, ids[i], &due) && !isnan(due);
    CHECK(shutdown(s.peer, SHUT_WR) == 0);
    CHECK(left > 0 && pthread_join(s.thread, NULL) == 0);
    for (told = (uint32_t)look(s.repeats).end_count; look(s.repeats).under_way > 0;) {
        work(&s); /* those that were not answered */
        told += (uint32_t)look(s.repeats).end_count;
    }
    CHECK(told == left && look(s.repeats).next == INFINITY);
    free_served(&s);
}

void test_repeats(void)
{
    test_frames();
    test_a_life_of_calls();
    test_places_are_used_again();
    test_no_connection();
    test_all_places();
    test_nobody_reads();
    test_many_answers();
    test_learning();
    test_what_is_shown();
    test_serving();
    test_serving_while_others_add();
}
