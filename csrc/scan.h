/* Taking list answers into the table: all or nothing. */
#ifndef TK_SCAN_H
#define TK_SCAN_H

#include "table.h"

/* A fault and where it is: in which list, which message of it, which byte of that message. */
typedef struct {
    int32_t code;
    int32_t kind; /* tk_kind of the list's entries */
    uint64_t message;
    uint64_t offset;
} tk_fault;

/* The messages of one list: one of a unary answer, any number of a stream. */
typedef struct {
    const tk_text *messages;
    size_t count;
} tk_list;

/* Makes the lists what is now. With `only` (a pod's uid) the rest of the table stays as it is and entries of
 * other pods are checked, but passed over. On an error the table is as before and *fault is filled. */
tk_code tk_scan(tk_table *t, const tk_text *only, tk_list sandboxes, tk_list containers, tk_fault *fault);

/* The pod's record moves on: what is now has been dealt with. */
void tk_commit_pod(tk_table *t, tk_text uid);

#endif
