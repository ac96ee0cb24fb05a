/* What the files of the repeats share: one's state, and what they do with it. */
#ifndef TK_REPEATS_STATE_H
#define TK_REPEATS_STATE_H

#include "frames.h"
#include "repeats.h"

#include <pthread.h>

#define AT_ONCE TK_REPEATS_AT_ONCE
#define MOST_WINDOW 0x7fffffff
#define PONGS 8 /* as many pings wait for their answer; one more, and all are answered */

/* What is repeated. */
typedef struct {
    double period;
    double timeout;
    double after;  /* when the next call is due; while one is under way */
    uint8_t *body; /* NULL: the place is free */
    uint64_t id;   /* the place, and above it a number that nothing had before */
    uint32_t size;
    uint32_t next_free;
    bool is_under_way;
    bool is_stopped;
} repeat;

/* One that is under way. */
typedef struct {
    double began;
    double deadline;
    uint32_t place;
    uint32_t head, data, tail; /* bytes of the answer so far */
    bool has_head;
} call;

typedef struct {
    uint32_t size;
    uint8_t bytes[TK_REPEATS_BLOCK];
} block;

struct tk_repeats {
    tk_repeats_view view; /* true after each function */
    pthread_mutex_t lock; /* serve and others may meet */
    double wakes_at;      /* serve, which is woken for what is due earlier */
    int event;
    bool is_left;
    double rate; /* calls a second */
    uint32_t added;
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
    bool is_odd;
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

/* Whether a call can be begun as far as the connection is concerned. */
bool tk_repeats_takes_calls(const tk_repeats *r);
/* Brings the view up to date. */
void tk_repeats_see(tk_repeats *r);
/* Somebody is to hear of this end, and the call is no longer repeated. */
void tk_repeats_tell(tk_repeats *r, uint32_t place, tk_end end);
/* Call `i` is not under way any more. */
void tk_repeats_remove(tk_repeats *r, uint32_t i);
/* Call `i` ended without an answer. */
void tk_repeats_fail(tk_repeats *r, uint32_t i, int why, uint32_t code);
/* Calls on later streams are lost; all of them, and the connection. */
void tk_repeats_lose_calls(tk_repeats *r, uint32_t last_stream);
void tk_repeats_lose(tk_repeats *r);
/* False if there is no room for what the peer is to be told. */
bool tk_repeats_cancel(tk_repeats *r, uint32_t stream);
bool tk_repeats_answer_pings(tk_repeats *r);
/* As tk_repeats_turn and tk_repeats_received; ends are added to those told before. */
void tk_repeats_take_turn(tk_repeats *r, double now, uint32_t together);
void tk_repeats_take(tk_repeats *r, const uint8_t *data, size_t size, double now);

#endif
