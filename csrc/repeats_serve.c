#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* ppoll */
#endif
/* The thread that keeps repeats going. It sleeps until something is due or answers are to be looked for. */
#include "repeats_state.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define READS 64 /* one after the other: a mebibyte at a look */
#define MANY (TK_REPEATS_PASSED / 2)

static double moment(double ahead)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9 + ahead;
}

static void receive(tk_repeats *r, int socket, double now)
{
    uint8_t bytes[TK_FRAME_MOST];
    for (int i = 0; i < READS && r->is_open; i++) {
        ssize_t size = recv(socket, bytes, sizeof bytes, MSG_DONTWAIT);
        if (size > 0)
            tk_repeats_take(r, bytes, (size_t)size, now);
        else if (size == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
            tk_repeats_lose(r);
        if (size < (ssize_t)sizeof bytes)
            return;
    }
}

static void transmit(tk_repeats *r, int socket)
{
    if (r->out.size == 0)
        return;
    ssize_t size = send(socket, r->out.bytes, r->out.size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size >= 0)
        tk_outbox_sent(&r->out, (size_t)size);
    else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
        tk_repeats_lose(r);
}

/* The moments are the same for all, so that one of them serves many. */
static double next_moment(double now, int each_second)
{
    return (floor(now * each_second) + 1) / each_second;
}

static double next_look(const tk_repeats *r, double now)
{
    double due = r->view.next > now ? r->view.next : next_moment(now, TK_REPEATS_LOOKS);
    if (r->under_way == 0 && r->out.size == 0)
        return due;
    bool is_late = now - r->view.newest >= TK_REPEATS_LATE;
    return fmin(due, next_moment(now, is_late ? TK_REPEATS_LATE_LOOKS : TK_REPEATS_LOOKS));
}

static uint32_t together(const tk_repeats *r)
{
    double many = ceil(r->rate / TK_REPEATS_LOOKS);
    return many > AT_ONCE ? AT_ONCE : many > TK_REPEATS_TOGETHER ? (uint32_t)many : TK_REPEATS_TOGETHER;
}

/* Sleeps without the lock until then, unless it is woken. */
static void sleep_until(tk_repeats *r, double then, double ahead)
{
    int event = r->event;
    r->wakes_at = then;
    pthread_mutex_unlock(&r->lock);
    double left = fmax(then - moment(ahead), 0.0);
    struct timespec wait = {.tv_sec = left < 1e6 ? (time_t)left : 1000000};
    wait.tv_nsec = left < 1e6 ? (long)((left - (double)wait.tv_sec) * 1e9) : 0;
    struct pollfd waker = {.fd = event, .events = POLLIN};
    uint64_t words;
    if (ppoll(&waker, 1, &wait, NULL) > 0 && read(event, &words, sizeof words) < 0)
        words = 0; /* somebody else was woken by it */
    pthread_mutex_lock(&r->lock);
    r->wakes_at = -INFINITY;
}

/* Whether somebody else has to do something. */
static bool is_over(const tk_repeats *r, double now)
{
    bool wants_connection = r->view.next <= now && r->under_way == 0 && !tk_repeats_takes_calls(r);
    return r->is_left || r->end_count > 0 || r->passed >= MANY || wants_connection;
}

void tk_repeats_serve(tk_repeats *r, int socket, int event, double ahead)
{
    pthread_mutex_lock(&r->lock);
    r->end_count = 0;
    r->event = event;
    r->wakes_at = -INFINITY;
    for (;;) {
        double now = moment(ahead);
        receive(r, socket, now);
        tk_repeats_see(r);
        if (r->view.next <= now && (tk_repeats_takes_calls(r) || r->under_way > 0))
            tk_repeats_take_turn(r, now, together(r));
        if (r->is_open)
            transmit(r, socket);
        tk_repeats_see(r);
        if (is_over(r, now))
            break;
        sleep_until(r, next_look(r, now), ahead);
    }
    r->is_left = false;
    r->event = -1;
    r->wakes_at = -INFINITY;
    pthread_mutex_unlock(&r->lock);
}
