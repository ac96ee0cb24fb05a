#include "repeats.h"

#include "repeats_state.h"
#include "wire.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOBODY UINT32_MAX
#define FIRST_WINDOW 65535   /* of a connection and of a stream, before anything was said */
#define LAST_STREAM 0x40000000
#define PONG_PAUSE 10.0      /* seconds for which a ping waits for its answer, see PONG_PAUSE in cri/answers.py */
#define CANCEL 8             /* reason of a reset */
#define LEAST_PERIOD 0.001   /* seconds, where calls a second are reckoned */

/* What is sent first: no table of headers, no pushes, and the largest window there is. */
static const uint8_t HELLO[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
                               "\0\0\14\4\0\0\0\0\0\0\1\0\0\0\0\0\2\0\0\0\0"
                               "\0\0\4\10\0\0\0\0\0\x7f\xff\0\0";

const tk_repeats_view *tk_repeats_look(const tk_repeats *r)
{
    return &r->view;
}

bool tk_repeats_takes_calls(const tk_repeats *r)
{
    return r->is_open && !r->is_going_away && r->next_stream <= LAST_STREAM;
}

/* What every function ends with, or Python would have to call another one each time. */
void tk_repeats_see(tk_repeats *r)
{
    r->view = (tk_repeats_view){
        .ends = r->ends,
        .end_count = r->end_count,
        .out = r->out.bytes,
        .out_size = r->out.size,
        .next = INFINITY,
        .newest = -INFINITY,
        .under_way = r->under_way,
        .passed = r->passed,
        .is_connected = r->is_open,
        .is_odd = r->is_odd,
        .takes_calls = tk_repeats_takes_calls(r),
    };
    for (uint32_t place = 0; place < r->count; place++)
        if (r->due[place] < r->view.next)
            r->view.next = r->due[place];
    for (uint32_t i = 0; i < r->highest; i++) {
        if (r->streams[i] == 0)
            continue;
        if (r->calls[i].deadline < r->view.next)
            r->view.next = r->calls[i].deadline;
        if (r->calls[i].began > r->view.newest)
            r->view.newest = r->calls[i].began;
    }
}

/* Who waits for the lock lends its holder the priority it has: the event loop's thread has one that others have not,
 * and on a busy node those may be without a CPU for long. */
static void make_lock(pthread_mutex_t *lock)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    if (pthread_mutex_init(lock, &attributes) != 0)
        pthread_mutex_init(lock, NULL); /* a kernel that cannot */
    pthread_mutexattr_destroy(&attributes);
}

tk_repeats *tk_repeats_new(const uint8_t *headers, size_t size)
{
    if (size > TK_REPEATS_BODY)
        return NULL;
    /* Pages of it that are never used are never there: what a busy moment needs comes last. */
    tk_repeats *r = calloc(1, sizeof *r);
    if (r == NULL)
        return NULL;
    make_lock(&r->lock);
    r->wakes_at = -INFINITY;
    r->event = -1;
    r->first_free = NOBODY;
    r->out = (tk_outbox){.bytes = r->out_bytes, .room = sizeof r->out_bytes};
    r->headers_size = (uint32_t)size;
    memcpy(r->headers, headers, size);
    tk_repeats_see(r);
    return r;
}

void tk_repeats_free(tk_repeats *r)
{
    if (r == NULL)
        return;
    for (uint32_t place = 0; place < r->count; place++)
        free(r->repeats[place].body);
    free(r->repeats);
    free(r->due);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

/* Repeats and calls. */

static void wake(tk_repeats *r)
{
    uint64_t one = 1;
    if (r->event >= 0 && write(r->event, &one, sizeof one) < 0)
        return; /* it has been woken often enough */
}

void tk_repeats_leave(tk_repeats *r)
{
    pthread_mutex_lock(&r->lock);
    r->is_left = true;
    wake(r);
    pthread_mutex_unlock(&r->lock);
}

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

/* Calls a second, a number also where there is no period. */
static double rate_of(double period)
{
    return 1 / fmax(period, LEAST_PERIOD);
}

int tk_repeats_add(tk_repeats *r, const uint8_t *body, size_t size, double due, double period, double timeout,
                   uint64_t *id)
{
    if (size > TK_REPEATS_BODY)
        return TK_NOMEM;
    uint8_t *kept = malloc(size + 1);
    if (kept == NULL)
        return TK_NOMEM;
    memcpy(kept, body, size);
    pthread_mutex_lock(&r->lock);
    bool has_place = r->first_free != NOBODY || r->count < r->room || grow(r);
    if (has_place) {
        uint32_t place = r->first_free;
        if (place == NOBODY)
            place = r->count++;
        else
            r->first_free = r->repeats[place].next_free;
        *id = (uint64_t)++r->added << 32 | place;
        r->repeats[place] =
            (repeat){.id = *id, .period = period, .timeout = timeout, .body = kept, .size = (uint32_t)size};
        r->due[place] = due;
        r->rate += rate_of(period);
        if (due < r->wakes_at)
            wake(r);
        tk_repeats_see(r);
    }
    pthread_mutex_unlock(&r->lock);
    if (!has_place)
        free(kept);
    return has_place ? TK_OK : TK_NOMEM;
}

static void forget(tk_repeats *r, uint32_t place)
{
    repeat *each = &r->repeats[place];
    r->rate -= rate_of(each->period);
    free(each->body);
    each->body = NULL;
    each->next_free = r->first_free;
    r->first_free = place;
    r->due[place] = INFINITY;
}

bool tk_repeats_stop(tk_repeats *r, uint64_t id, double *due)
{
    pthread_mutex_lock(&r->lock);
    uint32_t place = (uint32_t)id;
    bool is_there = place < r->count && r->repeats[place].body != NULL && r->repeats[place].id == id;
    bool is_under_way = is_there && r->repeats[place].is_under_way;
    *due = NAN;
    if (is_under_way) {
        r->repeats[place].is_stopped = true;
        *due = r->repeats[place].after;
    } else if (is_there) {
        *due = r->due[place];
        forget(r, place);
    }
    tk_repeats_see(r);
    pthread_mutex_unlock(&r->lock);
    return is_there && !is_under_way;
}

/* Somebody is to hear of this end, and the call is no longer repeated. */
void tk_repeats_tell(tk_repeats *r, uint32_t place, tk_end end)
{
    end.id = r->repeats[place].id;
    r->ends[r->end_count++] = end;
    forget(r, place);
}

void tk_repeats_remove(tk_repeats *r, uint32_t i)
{
    r->streams[i] = 0;
    r->under_way--;
    while (r->highest > 0 && r->streams[r->highest - 1] == 0)
        r->highest--;
}

/* A call ended without an answer. */
void tk_repeats_fail(tk_repeats *r, uint32_t i, int why, uint32_t code)
{
    call *c = &r->calls[i];
    tk_repeats_remove(r, i);
    tk_repeats_tell(r, c->place, (tk_end){.began = c->began, .why = why, .code = code});
}

bool tk_repeats_cancel(tk_repeats *r, uint32_t stream)
{
    uint8_t reason[4];
    tk_write_be32(reason, CANCEL);
    return tk_put_frame(&r->out, (tk_frame){.size = 4, .kind = TK_FRAME_RST, .stream = stream}, reason);
}

/* The connection. */

void tk_repeats_lose_calls(tk_repeats *r, uint32_t last_stream)
{
    for (uint32_t i = r->highest; i-- > 0;)
        if (r->streams[i] > last_stream)
            tk_repeats_fail(r, i, TK_END_LOST, 0);
}

void tk_repeats_lose(tk_repeats *r)
{
    tk_repeats_lose_calls(r, 0);
    r->is_open = false;
    r->out.size = 0;
    r->pongs = 0; /* or a turn would answer them to nobody */
}

void tk_repeats_lost(tk_repeats *r)
{
    r->end_count = 0;
    tk_repeats_lose(r);
    tk_repeats_see(r);
}

void tk_repeats_connected(tk_repeats *r)
{
    tk_repeats_lost(r);
    r->is_open = true;
    r->is_going_away = r->is_odd = false;
    r->next_stream = 1;
    r->most = AT_ONCE;
    r->peer_window = FIRST_WINDOW;
    r->window = FIRST_WINDOW;
    r->taken = r->in_size = 0;
    r->out.size = sizeof HELLO - 1;
    memcpy(r->out.bytes, HELLO, r->out.size);
    tk_repeats_see(r);
}

void tk_repeats_sent(tk_repeats *r, size_t size)
{
    tk_outbox_sent(&r->out, size);
    tk_repeats_see(r);
}

bool tk_repeats_answer_pings(tk_repeats *r)
{
    for (uint32_t i = 0; i < r->pongs; i++)
        if (!tk_put_frame(&r->out, (tk_frame){.size = 8, .kind = TK_FRAME_PING, .flags = TK_FLAG_ACK}, r->pong[i]))
            return false;
    r->pongs = 0;
    return true;
}

/* Begins the call that is due; false if that cannot be now. */
static bool begin(tk_repeats *r, uint32_t place, double now)
{
    repeat *each = &r->repeats[place];
    size_t needed = 2 * TK_FRAME_HEAD + r->headers_size + each->size;
    if (!tk_repeats_takes_calls(r) || r->under_way >= r->most || each->size > r->peer_window || each->size > r->window ||
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
    r->calls[i] = (call){.began = now, .deadline = now + each->timeout, .place = place};
    r->highest = r->highest > i ? r->highest : i + 1;
    r->under_way++;
    each->is_under_way = true;
    each->after = r->due[place] + each->period;
    r->due[place] = INFINITY;
    return true;
}

static void end_overdue(tk_repeats *r, double now)
{
    for (uint32_t i = r->highest; i-- > 0;) {
        if (r->streams[i] == 0 || r->calls[i].deadline > now)
            continue;
        bool is_told = tk_repeats_cancel(r, r->streams[i]);
        tk_repeats_fail(r, i, TK_END_OVERDUE, 0);
        if (!is_told) {
            tk_repeats_lose(r);
            return;
        }
    }
}

void tk_repeats_take_turn(tk_repeats *r, double now, uint32_t together)
{
    end_overdue(r, now);
    uint32_t left = together < AT_ONCE ? together : AT_ONCE;
    for (uint32_t n = r->count, place = r->cursor; n > 0 && left > 0; n--, place++) {
        if (place >= r->count)
            place = 0;
        if (!(r->due[place] <= now) || r->repeats[place].body == NULL || r->repeats[place].is_under_way)
            continue; /* the last two for moments that are no numbers */
        left--;
        r->cursor = place + 1;
        if (r->pongs > 0 && now - r->pinged >= PONG_PAUSE && !tk_repeats_answer_pings(r))
            tk_repeats_lose(r);
        if (!begin(r, place, now))
            tk_repeats_tell(r, place, (tk_end){.began = now, .why = TK_END_NOT_MADE});
    }
}

void tk_repeats_turn(tk_repeats *r, double now, uint32_t together)
{
    r->end_count = 0;
    tk_repeats_take_turn(r, now, together);
    tk_repeats_see(r);
}

size_t tk_repeats_passed(tk_repeats *r, tk_pass *passed, size_t room)
{
    size_t count = 0;
    pthread_mutex_lock(&r->lock);
    for (; count < room && r->passed > 0; count++, r->passed--) {
        passed[count] = r->passes[r->passed_first];
        r->passed_first = (r->passed_first + 1) % TK_REPEATS_PASSED;
    }
    tk_repeats_see(r);
    pthread_mutex_unlock(&r->lock);
    return count;
}
