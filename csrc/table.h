/* The table: a record per (pod uid, id), in pods, with the committed and the current state side by side.
 *
 * Nothing here reads list answers (scan.c) or makes events (out.c); a table is all the state there is, so any
 * number of them can live in one process. One table is for one thread at a time. */
#ifndef TK_TABLE_H
#define TK_TABLE_H

#include "entry.h"
#include "index.h"
#include "intern.h"
#include "keyhash.h"
#include "pool.h"

#define TK_ID_INLINE 64  /* ids of containerd and CRI-O fit */
#define TK_UID_INLINE 36 /* UUIDs and hashes fit */
#define TK_INTERNED 0xff /* as a size: the text is interned, its number stands in the first bytes */

/* State and kind in a byte: what a record was or is. The kind stays when the state is TK_ABSENT. */
typedef uint8_t tk_status;
#define TK_STATUS(kind, state) ((tk_status)((kind) << 3 | (state)))
#define TK_STATE(status) ((tk_state)((status)&7))
#define TK_KIND(status) ((tk_kind)((status) >> 3))

typedef struct {
    uint8_t id[TK_ID_INLINE];
    int64_t created_at;
    uint32_t pod;    /* TK_NONE: the record is free */
    uint32_t next;   /* record of the same pod */
    uint32_t seen;   /* by which scan, see tk_table.epoch */
    uint32_t detail; /* interned: container: name, image, image_ref, image_id, hash; sandbox: pod, namespace */
    uint32_t extra;  /* container: interned: sandbox id, pod, namespace; sandbox: attempt */
    uint8_t id_size;
    tk_status old; /* committed */
    tk_status now; /* in the last relist */

} tk_record;

typedef struct {
    uint8_t uid[TK_UID_INLINE];
    uint32_t first;      /* record */
    uint32_t records;    /* 0: the pod is free */
    uint32_t present;    /* records that are in the last relist */
    uint32_t differing;  /* records with something to tell */
    uint32_t ready;      /* running sandboxes */
    uint32_t running;    /* running containers */
    uint32_t changed_at; /* place in tk_table.changed while differing > 0 */
    uint8_t uid_size;
    bool gathered; /* used while a scan ends */
} tk_pod;

/* What a scan changed, to undo it or to finish it. */
typedef struct {
    tk_text item;        /* the entry's message */
    int64_t created_at;  /* before the scan, as all below */
    uint32_t record;
    uint32_t extra;
    tk_status now;
    bool inserted;
    bool renewed;        /* the details have to be read (again) */
    uint32_t new_detail; /* interned when the scan ends */
    uint32_t new_extra;
} tk_step;

/* Answers to the caller: a run of texts and a run of numbers (see tk.h for what they mean). */
typedef struct {
    void *p;
    size_t used, capacity; /* items */
} tk_room;

typedef struct {
    tk_room text;    /* bytes */
    tk_room ends;    /* uint64_t: where each text ends */
    tk_room numbers; /* int64_t */
    tk_room order;   /* uint32_t: records while they are sorted */
} tk_out;

typedef struct tk_table {
    tk_mem mem;
    tk_seed seed;
    uint64_t (*count_high)(const uint8_t *, size_t); /* see fast.h */

    tk_pool records;
    tk_index record_index;
    tk_pool pods;
    tk_index pod_index;
    tk_intern intern;

    uint32_t pod_count;
    uint32_t present;             /* records in the last relist */
    uint32_t ready_pods;          /* pods with a running sandbox */
    uint32_t containers[TK_UNKNOWN + 1]; /* containers in the last relist, by state */
    uint32_t *changed;            /* pods with something to tell */
    uint32_t changed_count;
    uint32_t *scratch;            /* another list of pods, behind `changed` in the same memory */
    uint32_t pods_capacity;       /* of each */

    /* A record seen unchanged by the running scan has seen == epoch, one with a step epoch + 1 + its number. */
    uint32_t epoch;
    tk_step *steps;
    uint32_t step_count, step_capacity;

    tk_out out;
} tk_table;

tk_table *tk_table_new(uint64_t seed);
void tk_table_free(tk_table *t);

static inline tk_record *tk_record_at(const tk_table *t, uint32_t number)
{
    return tk_pool_at(&t->records, number, sizeof(tk_record));
}

static inline tk_pod *tk_pod_at(const tk_table *t, uint32_t number)
{
    return tk_pool_at(&t->pods, number, sizeof(tk_pod));
}

tk_text tk_record_id(const tk_table *t, const tk_record *r);
tk_text tk_pod_uid(const tk_table *t, const tk_pod *p);

/* Whether the record, which may be free or not yet given out, is that one. */
bool tk_is_record(const tk_table *t, uint32_t number, tk_text uid, tk_text id);

/* The number of the record or pod, TK_NONE when there is none. */
uint32_t tk_find_record(const tk_table *t, tk_text uid, tk_text id, uint32_t hash);
uint32_t tk_find_pod(const tk_table *t, tk_text uid);

/* Adds a record that is absent, was absent and has no details; makes its pod where needed. */
tk_code tk_add_record(tk_table *t, tk_text uid, tk_text id, uint32_t hash, uint32_t *number);
/* Removes the pod's first record, which must be absent; the pod goes with its last record. */
void tk_remove_first(tk_table *t, uint32_t pod);
/* Removes all records of the pod that are absent and have nothing to tell. */
void tk_remove_absent(tk_table *t, uint32_t pod);

/* Sets what the record is now or was, and keeps all counts. */
void tk_set_now(tk_table *t, tk_record *r, tk_status now);
void tk_set_old(tk_table *t, tk_record *r, tk_status old);

/* The state events are made from: created counts as unknown. */
static inline tk_state tk_pleg_state(tk_status status)
{
    return TK_STATE(status) == TK_CREATED ? TK_UNKNOWN : TK_STATE(status);
}

static inline bool tk_differs(const tk_record *r)
{
    return tk_pleg_state(r->old) != tk_pleg_state(r->now);
}

static inline bool tk_same_text(tk_text a, tk_text b)
{
    if (a.size != b.size)
        return false;
    if (a.size < 8)
        return memcmp(a.data, b.data, a.size) == 0;
    uint64_t difference = 0;
    for (size_t i = 0; i + 8 < a.size; i += 8)
        difference |= tk_load64(a.data + i) ^ tk_load64(b.data + i);
    return (difference | (tk_load64(a.data + a.size - 8) ^ tk_load64(b.data + b.size - 8))) == 0;
}

#endif
