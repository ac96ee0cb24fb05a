/* Calls that are made again and again over one HTTP/2 connection, and whose answers nearly always say nothing new:
 * the exec probes of a node. Bytes and moments go in; bytes to be sent, and what somebody has to hear of, come out.
 * Only tk_repeats_serve reads a clock and a socket, in a thread of its own, so that nobody is woken for what says
 * nothing new. Twin: trio_kubelet/native/pure_repeats.py, of tk_repeats_serve pure_serving.py beside it.
 *
 * The peer is told to use no table of headers, so a block of them always says the same. Which blocks say that a call
 * succeeded is learnt from who can read them (tk_repeats_learn). An answer passed if its blocks are such ones, and
 * its message is an ExecSyncResponse with the exit code 0. All that is not as usual is for others: an end that is
 * told takes its call out of the repeats. */
#ifndef TK_REPEATS_H
#define TK_REPEATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TK_REPEATS_AT_ONCE 256   /* calls that may wait for their answer */
#define TK_REPEATS_BODY 4096     /* bytes of a request, prefix and all */
#define TK_REPEATS_ANSWER 2048   /* bytes of an answer that are kept */
#define TK_REPEATS_BLOCK 128     /* bytes of a block of headers that can be learnt */
#define TK_REPEATS_BLOCKS 4      /* as many are known of each place */
#define TK_REPEATS_PASSED 4096   /* ends that can wait to be counted */
#define TK_REPEATS_OUT 65536     /* bytes that can wait to be sent */
#define TK_REPEATS_TOGETHER 14   /* calls that are begun at one moment, unless there are so many that more have to be */
#define TK_REPEATS_LOOKS 8       /* moments in each second at which answers are looked for */
#define TK_REPEATS_LATE_LOOKS 4  /* of those that have not come after */
#define TK_REPEATS_LATE 0.25     /* seconds */

/* Why a call's end is told. */
enum {
    TK_END_ANSWERED, /* with the blocks and the data there were */
    TK_END_TOO_LONG, /* the answer is; it was broken off */
    TK_END_RESET,    /* by the peer, for the reason in `code` */
    TK_END_OVERDUE,  /* broken off */
    TK_END_LOST,     /* with its connection */
    TK_END_NOT_MADE, /* it was due, and no call can be made now */
};

typedef struct {
    double began; /* for one not made: when that was found */
    uint64_t id;
    int32_t why;
    uint32_t code;
    uint32_t head; /* bytes of the answer: headers, data, trailers, one behind the other */
    uint32_t data;
    uint32_t tail;
    const uint8_t *answer;
} tk_end;

typedef struct {
    double seconds;
    uint64_t id;
} tk_pass;

typedef struct tk_repeats tk_repeats;

/* What there is to be done, after each function. */
typedef struct {
    const tk_end *ends; /* told by the last connected, lost, received, turn or serve */
    const uint8_t *out; /* to be sent */
    size_t end_count;
    size_t out_size;
    double next;   /* when something is due or overdue; infinite if nothing is */
    double newest; /* when the last of the calls under way began; minus infinity if there is none */
    uint32_t under_way;
    uint32_t passed; /* ends that wait to be counted */
    uint8_t is_connected; /* false once the connection was lost, or said what cannot be understood */
    uint8_t is_odd;       /* that is why it was lost */
    uint8_t takes_calls;  /* false as well where the peer is going away: what is under way may still end */
} tk_repeats_view;

/* `headers`: the block of every request, which refers to no table. NULL when memory is short, or it is too long. */
tk_repeats *tk_repeats_new(const uint8_t *headers, size_t size);
void tk_repeats_free(tk_repeats *r);

/* A call at `due` and every `period` seconds after, each for at most `timeout` of them; one that takes longer than the
 * period is followed by the next at once. TK_NOMEM when memory is short, or the body, which has its prefix, too long. */
int tk_repeats_add(tk_repeats *r, const uint8_t *body, size_t size, double due, double period, double timeout,
                   uint64_t *id);
/* No more calls of that one, which would have been made at *due. True if none is under way: it is forgotten. If not, the
 * end of that one will be told. False and NaN for what is not there. */
bool tk_repeats_stop(tk_repeats *r, uint64_t id, double *due);

/* There is a new connection, on which nothing has been sent. What was under way is lost. */
void tk_repeats_connected(tk_repeats *r);
/* There is no connection any more. */
void tk_repeats_lost(tk_repeats *r);

/* What came. If it cannot be understood, the connection is lost. */
void tk_repeats_received(tk_repeats *r, const uint8_t *data, size_t size, double now);
/* Ends calls that are overdue, and begins those that are due, `together` at most; those that cannot be made are told,
 * and among these. The connection of a peer that has not read for long is lost. */
void tk_repeats_turn(tk_repeats *r, double now, uint32_t together);
/* The first bytes of what was to be sent are. */
void tk_repeats_sent(tk_repeats *r, size_t size);

/* Does all that, with the socket `socket`, at the moments at which there is something to do: until an end is to be
 * told, a call is due and there is no connection for it, many that passed wait to be counted, or tk_repeats_leave.
 * `ahead` makes moments of the monotonic clock's. Meanwhile only tk_repeats_add, _stop, _passed and _leave may be
 * called, from other threads; `event`, an eventfd that does not block, is how these wake it. */
void tk_repeats_serve(tk_repeats *r, int socket, int event, double ahead);
/* Ends tk_repeats_serve, now or as soon as it begins. */
void tk_repeats_leave(tk_repeats *r);

/* A block that says of a call that it succeeds: as headers (tail: 0) or as trailers (1). The oldest one goes when
 * there are too many. */
void tk_repeats_learn(tk_repeats *r, int tail, const uint8_t *block, size_t size);

/* Where it stands what there is; the same place all the time. */
const tk_repeats_view *tk_repeats_look(const tk_repeats *r);
/* Takes up to `room` of the ends that wait to be counted, the oldest first; how many. */
size_t tk_repeats_passed(tk_repeats *r, tk_pass *passed, size_t room);

#endif
