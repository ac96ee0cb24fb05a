#include "tk.h"

static void fill(const tk_table *t, tk_answer *answer)
{
    answer->text = t->out.text.p;
    answer->ends = t->out.ends.p;
    answer->numbers = t->out.numbers.p;
    answer->text_count = t->out.ends.used;
    answer->number_count = t->out.numbers.used;
}

static int relist(tk_table *t, const tk_text *only, tk_list sandboxes, tk_list containers, tk_fault *fault,
                  tk_answer *answer)
{
    tk_code code = tk_scan(t, only, sandboxes, containers, fault);
    if (code == TK_OK)
        fault->code = (int32_t)(code = tk_tell_changes(t, only));
    fill(t, answer);
    return (int)code;
}

int tk_relist(tk_table *t, const tk_text *sandboxes, size_t sandbox_count, const tk_text *containers,
              size_t container_count, tk_fault *fault, tk_answer *answer)
{
    return relist(t, NULL, (tk_list){sandboxes, sandbox_count}, (tk_list){containers, container_count}, fault,
                  answer);
}

int tk_relist_pod(tk_table *t, const uint8_t *uid, size_t uid_size, const tk_text *sandboxes,
                  size_t sandbox_count, const tk_text *containers, size_t container_count, tk_fault *fault,
                  tk_answer *answer)
{
    tk_text only = {.data = uid, .size = uid_size};
    return relist(t, &only, (tk_list){sandboxes, sandbox_count}, (tk_list){containers, container_count}, fault,
                  answer);
}

void tk_commit(tk_table *t, const uint8_t *uids, const uint64_t *ends, size_t count)
{
    uint64_t start = 0;
    for (size_t i = 0; i < count; i++) {
        tk_commit_pod(t, (tk_text){.data = uids + start, .size = (size_t)(ends[i] - start)});
        start = ends[i];
    }
}

int tk_view_pod(tk_table *t, const uint8_t *uid, size_t uid_size, tk_answer *answer)
{
    tk_code code = tk_tell_pod(t, (tk_text){.data = uid, .size = uid_size});
    fill(t, answer);
    return (int)code;
}

int tk_list_pods(tk_table *t, int running, tk_answer *answer)
{
    tk_code code = tk_tell_pods(t, running != 0);
    fill(t, answer);
    return (int)code;
}

void tk_count(const tk_table *t, tk_totals *totals)
{
    *totals = (tk_totals){
        .running_pods = t->ready_pods,
        .entries = t->present,
        .bytes = sizeof *t + t->mem.bytes,
        .allocations = t->mem.allocations,
    };
    memcpy(totals->containers, t->containers, sizeof t->containers);
}

#ifdef TK_CHECKED
void tk_fail_after(tk_table *t, int64_t count)
{
    t->mem.fail_after = count;
}
#endif
