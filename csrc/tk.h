/* What Python sees. Every function here works on its table alone and blocks on nothing; a table is for one thread
 * at a time. Codes are tk_code (0: good); trio_kubelet/native/table.py is their only caller. */
#ifndef TK_H
#define TK_H

#include "arena.h"
#include "crilog.h"
#include "figures.h"
#include "hash.h"
#include "out.h"
#include "repeats.h"
#include "scan.h"

/* What the last tk_relist, tk_relist_pod, tk_view_pod or tk_list_pods has to say (out.h); valid until the next. */
typedef struct {
    const uint8_t *text;
    const uint64_t *ends;
    const int64_t *numbers;
    size_t text_count;
    size_t number_count;
} tk_answer;

typedef struct {
    uint32_t containers[5]; /* by state: absent (0), created, running, exited, unknown */
    uint32_t running_pods;  /* with a ready sandbox */
    uint32_t entries;       /* containers and sandboxes */
    uint64_t bytes;         /* of memory the table uses */
    uint64_t allocations;   /* since it was made */
} tk_totals;

int tk_relist(tk_table *t, const tk_text *sandboxes, size_t sandbox_count, const tk_text *containers,
              size_t container_count, tk_fault *fault, tk_answer *answer);
int tk_relist_pod(tk_table *t, const uint8_t *uid, size_t uid_size, const tk_text *sandboxes,
                  size_t sandbox_count, const tk_text *containers, size_t container_count, tk_fault *fault,
                  tk_answer *answer);
/* Commits pods whose uids stand one behind the other in `uids`, the i-th ending at ends[i]. Many at once, as
 * every call from Python lets go of the interpreter and may have to wait to get it back. */
void tk_commit(tk_table *t, const uint8_t *uids, const uint64_t *ends, size_t count);
int tk_view_pod(tk_table *t, const uint8_t *uid, size_t uid_size, tk_answer *answer);
int tk_list_pods(tk_table *t, int running, tk_answer *answer);
void tk_count(const tk_table *t, tk_totals *totals);
#ifdef TK_CHECKED
/* After `count` more allocations all fail; negative: none does. */
void tk_fail_after(tk_table *t, int64_t count);
#endif

#endif
