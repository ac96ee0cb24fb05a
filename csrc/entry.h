/* One container or sandbox of a list answer, read exactly. Twin: trio_kubelet/native/wire.py. */
#ifndef TK_ENTRY_H
#define TK_ENTRY_H

#include "wire.h"

typedef enum { TK_SANDBOX = 0, TK_CONTAINER = 1 } tk_kind;

/* The CRI's container states behind "not there"; a ready sandbox is running, another one exited. */
typedef enum { TK_ABSENT = 0, TK_CREATED, TK_RUNNING, TK_EXITED, TK_UNKNOWN } tk_state;

typedef struct {
    tk_text id;
    tk_text uid; /* of the pod */
    int64_t created_at;
    uint32_t attempt; /* sandboxes; 0 for containers */
    uint8_t kind;
    uint8_t state;
    bool has_metadata;
    bool has_image;
    tk_text item; /* the message it was read from */
} tk_entry;

/* The rest of an entry, wanted only when it is new. */
typedef struct {
    tk_text pod_name;
    tk_text pod_namespace;
    tk_text name;
    tk_text sandbox_id;
    tk_text image;
    tk_text image_ref;
    tk_text image_id;
    tk_text hash;
} tk_details;

/* Reads the Container or PodSandbox in `item`, which lies in the message that begins at `start`.
 * `details` may be NULL. On a fault its offset is left in *fault. */
tk_code tk_read_entry(const uint8_t *start, tk_text item, tk_kind kind, tk_entry *entry, tk_details *details,
                      size_t *fault);

/* Whether the kubelet takes it up: it needs metadata and an id, a container an image too. */
static inline bool tk_entry_counts(const tk_entry *e)
{
    return e->has_metadata && e->id.size > 0 && (e->kind == TK_SANDBOX || e->has_image);
}

/* The state for the number in the answer. */
static inline uint8_t tk_state_of(tk_kind kind, uint32_t number)
{
    if (kind == TK_CONTAINER)
        return (uint8_t)(number < 3 ? TK_CREATED + number : TK_UNKNOWN);
    return (uint8_t)(number < 2 ? TK_RUNNING + number : TK_UNKNOWN);
}

#endif
