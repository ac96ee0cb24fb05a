#include "scan.h"

#include "fast.h"

#define BATCH 32
#define STEPS_KEPT 1024 /* room for steps that is not given back after a scan */

typedef struct {
    tk_table *t;
    const tk_text *only;
    uint32_t returned; /* distinct records that were in the last relist and are in this one */

    /* Entries read and not yet taken up; they point into the message. */
    tk_entry batch[BATCH];
    uint32_t hashes[BATCH];
    bool hashed[BATCH];
    unsigned waiting;

    /* Many runtimes list in the same order every time, and records stand in the order of their first list:
     * after two that followed each other the next one is looked for behind the last, without the index. */
    uint32_t last;
    bool in_order;

    /* The stretch of the message, up to where reading is, whose strings are not yet known to be UTF-8, and
     * the number of bytes from 0x80 up in it that are in no string. */
    const uint8_t *unchecked;
    uint64_t high;
} scan;

static tk_code add_step(tk_table *t, tk_step **step)
{
    if (t->step_count == t->step_capacity) {
        size_t old = t->step_capacity, grown = old == 0 ? 64 : 2 * old;
        if (grown > UINT32_MAX / 4)
            return TK_NOMEM;
        tk_step *steps = tk_mem_resize(&t->mem, t->steps, old * sizeof *steps, grown * sizeof *steps);
        if (steps == NULL)
            return TK_NOMEM;
        t->steps = steps;
        t->step_capacity = (uint32_t)grown;
    }
    *step = &t->steps[t->step_count++];
    return TK_OK;
}

/* The newest first, and a container before a sandbox: whether `e` takes the record from what it is now. */
static bool goes_before(const tk_entry *e, const tk_record *r)
{
    if (e->kind != TK_KIND(r->now))
        return e->kind == TK_CONTAINER;
    if (e->kind == TK_SANDBOX && e->attempt != r->extra)
        return e->attempt > r->extra;
    return e->created_at > r->created_at;
}

static bool same_life(const tk_entry *e, const tk_record *r)
{
    return e->kind == TK_KIND(r->now) && e->created_at == r->created_at &&
           (e->kind == TK_CONTAINER || e->attempt == r->extra);
}

/* Writes the entry into the record and notes in the step what that takes to finish. */
static void apply(tk_table *t, tk_record *r, tk_step *step, const tk_entry *e, bool renewed)
{
    step->item = e->item;
    step->renewed = renewed;
    if (renewed) {
        r->extra = e->kind == TK_SANDBOX ? e->attempt : 0;
        r->created_at = e->created_at;
    }
    tk_set_now(t, r, TK_STATUS(e->kind, e->state));
}

static tk_code begin_step(tk_table *t, uint32_t number, tk_step **step)
{
    tk_code code = add_step(t, step);
    if (code)
        return code;
    tk_record *r = tk_record_at(t, number);
    **step = (tk_step){.record = number, .created_at = r->created_at, .extra = r->extra, .now = r->now};
    r->seen = t->epoch + t->step_count; /* its number + 1 */
    return TK_OK;
}

static tk_code insert(scan *s, const tk_entry *e, uint32_t hash)
{
    tk_table *t = s->t;
    tk_step *step;
    uint32_t number;
    tk_code code = add_step(t, &step);
    if (code)
        return code;
    if ((code = tk_add_record(t, e->uid, e->id, hash, &number)) != TK_OK) {
        t->step_count--;
        return code;
    }
    *step = (tk_step){.record = number, .inserted = true};
    tk_record *r = tk_record_at(t, number);
    r->seen = t->epoch + t->step_count;
    apply(t, r, step, e, true);
    return TK_OK;
}

static tk_code touch(scan *s, uint32_t number, const tk_entry *e)
{
    tk_table *t = s->t;
    tk_record *r = tk_record_at(t, number);
    tk_step *step;
    tk_code code;
    if (r->seen < t->epoch) { /* for the first time in this scan */
        bool same = same_life(e, r);
        s->returned += TK_STATE(r->now) != TK_ABSENT;
        if (same && TK_STATE(r->now) == e->state) {
            r->seen = t->epoch;
            return TK_OK;
        }
        if ((code = begin_step(t, number, &step)) == TK_OK)
            apply(t, r, step, e, !same);
        return code;
    }
    if (!goes_before(e, r))
        return TK_OK;
    if (r->seen > t->epoch)
        step = &t->steps[r->seen - t->epoch - 1];
    else if ((code = begin_step(t, number, &step)) != TK_OK)
        return code;
    apply(t, r, step, e, true);
    return TK_OK;
}

static const tk_record *prefetch_record(const tk_table *t, uint32_t number)
{
    if (number >= t->records.used_up)
        return NULL;
    const tk_record *r = tk_record_at(t, number);
    __builtin_prefetch(&r->id, 1);
    __builtin_prefetch(&r->pod, 1);
    return r;
}

/* Asks for the memory that the lookups of the batch will touch, so that the waits for it overlap. */
static void prefetch(const scan *s)
{
    const tk_table *t = s->t;
    const tk_record *likely[BATCH];
    unsigned n = 0;
    if (t->record_index.used == 0)
        return;
    for (unsigned i = 0; i < s->waiting; i++) {
        if (!s->hashed[i])
            continue;
        tk_slot slot = t->record_index.slots[tk_index_home(&t->record_index, s->hashes[i])];
        if (slot.value != 0)
            likely[n++] = prefetch_record(t, slot.value - 1);
    }
    for (unsigned i = 0; i < n; i++)
        if (likely[i]->pod != TK_NONE)
            __builtin_prefetch(tk_pod_at(t, likely[i]->pod));
}

static uint32_t hash_of(scan *s, unsigned i)
{
    if (!s->hashed[i])
        s->hashes[i] = tk_hash_key(&s->t->seed, s->batch[i].uid, s->batch[i].id);
    s->hashed[i] = true;
    return s->hashes[i];
}

/* The record of the i-th entry in the batch. */
static uint32_t find(scan *s, unsigned i)
{
    const tk_entry *e = &s->batch[i];
    uint32_t next = s->last + 1, number = next;
    if (!s->in_order || !tk_is_record(s->t, next, e->uid, e->id))
        number = tk_find_record(s->t, e->uid, e->id, hash_of(s, i));
    s->in_order = number == next;
    s->last = number;
    return number;
}

static tk_code flush(scan *s)
{
    tk_code code = TK_OK;
    prefetch(s);
    for (unsigned i = 0; i < s->waiting && code == TK_OK; i++) {
        const tk_entry *e = &s->batch[i];
        uint32_t number = find(s, i);
        code = number == TK_NONE ? insert(s, e, hash_of(s, i)) : touch(s, number, e);
    }
    s->waiting = 0;
    return code;
}

/* Takes up the entry that was read into the first free place of the batch. */
static void take(scan *s)
{
    const tk_entry *e = &s->batch[s->waiting];
    const tk_index *index = &s->t->record_index;
    if (!tk_entry_counts(e) || (s->only != NULL && !tk_same_text(*s->only, e->uid)))
        return;
    unsigned i = s->waiting++;
    s->hashed[i] = false;
    if (s->in_order)
        prefetch_record(s->t, s->last + 1 + i);
    else if (index->used > 0)
        __builtin_prefetch(&index->slots[tk_index_home(index, hash_of(s, i))]);
}

/* Makes sure that the strings read quickly up to `r->pos` are UTF-8. */
static tk_code check_strings(scan *s, tk_reader *r, tk_kind kind)
{
    tk_reader again = {.start = r->start, .pos = s->unchecked, .end = r->pos};
    uint64_t high = s->high;
    s->unchecked = r->pos;
    s->high = 0;
    if (s->t->count_high(again.pos, (size_t)(again.end - again.pos)) == high)
        return TK_OK;
    tk_code code = TK_OK;
    while (code == TK_OK && again.pos < again.end) {
        tk_tag tag;
        tk_text item;
        tk_entry e;
        if ((code = tk_read_tag(&again, &tag)) == TK_OK && (code = tk_read_bytes(&again, &item)) == TK_OK)
            code = tk_read_entry(r->start, item, kind, &e, NULL, &again.fault);
    }
    r->fault = again.fault;
    return code;
}

/* Reads one field of the list exactly. */
static tk_code scan_field(scan *s, tk_reader *r, tk_kind kind)
{
    tk_tag tag;
    tk_text item;
    tk_code code = check_strings(s, r, kind); /* the first fault counts */
    if (code == TK_OK)
        code = tk_read_tag(r, &tag);
    if (code)
        return code;
    if (tag.number != 1 || tag.type != TK_LENGTH)
        return tk_skip(r, tag);
    if ((code = tk_read_bytes(r, &item)) == TK_OK)
        code = tk_read_entry(r->start, item, kind, &s->batch[s->waiting], NULL, &r->fault);
    if (code == TK_OK)
        take(s);
    return code;
}

static tk_code scan_message(scan *s, tk_text message, tk_kind kind, uint64_t *offset)
{
    tk_reader r = {.start = message.data, .pos = message.data, .end = message.data + message.size};
    tk_code code = TK_OK;
    s->unchecked = r.pos;
    while (code == TK_OK && r.pos < r.end) {
        if (tk_fast_entry(&r.pos, r.end, kind, &s->batch[s->waiting], &s->high)) {
            take(s);
        } else {
            code = scan_field(s, &r, kind);
            s->unchecked = r.pos;
        }
        if (code == TK_OK && s->waiting == BATCH && (code = check_strings(s, &r, kind)) == TK_OK)
            code = flush(s);
    }
    if (code == TK_OK && (code = check_strings(s, &r, kind)) == TK_OK)
        code = flush(s); /* the entries point into the message */
    *offset = r.fault;
    return code;
}

static tk_code scan_list(scan *s, tk_list list, tk_kind kind, tk_fault *fault)
{
    for (size_t i = 0; i < list.count; i++) {
        tk_code code = scan_message(s, list.messages[i], kind, &fault->offset);
        if (code) {
            fault->code = code;
            fault->kind = kind;
            fault->message = i;
            return code;
        }
    }
    return TK_OK;
}

/* Takes the table back to where it was before the scan. */
static void undo(tk_table *t)
{
    for (uint32_t i = t->step_count; i > 0; i--) { /* backwards: what was inserted last stands first in its pod */
        const tk_step *step = &t->steps[i - 1];
        tk_record *r = tk_record_at(t, step->record);
        tk_intern_give(&t->intern, &t->mem, step->new_detail);
        tk_intern_give(&t->intern, &t->mem, step->new_extra);
        tk_set_now(t, r, step->now);
        r->created_at = step->created_at;
        r->extra = step->extra;
        if (step->inserted)
            tk_remove_first(t, r->pod);
    }
}

/* Interns the details of what is new. */
static tk_code read_details(tk_table *t)
{
    for (uint32_t i = 0; i < t->step_count; i++) {
        tk_step *step = &t->steps[i];
        if (!step->renewed)
            continue;
        tk_entry e;
        tk_details d;
        size_t ignored;
        tk_kind kind = TK_KIND(tk_record_at(t, step->record)->now);
        tk_code code = tk_read_entry(step->item.data, step->item, kind, &e, &d, &ignored);
        if (code)
            return code;
        tk_text own[] = {d.name, d.image, d.image_ref, d.image_id.size > 0 ? d.image_id : d.image_ref, d.hash};
        tk_text shared[] = {d.sandbox_id, d.pod_name, d.pod_namespace};
        if (kind == TK_SANDBOX) {
            code = tk_intern_take(&t->intern, &t->mem, &t->seed, shared + 1, 2, &step->new_detail);
        } else {
            code = tk_intern_take(&t->intern, &t->mem, &t->seed, own, 5, &step->new_detail);
            if (code == TK_OK)
                code = tk_intern_take(&t->intern, &t->mem, &t->seed, shared, 3, &step->new_extra);
        }
        if (code)
            return code;
    }
    return TK_OK;
}

/* Hands the new details to the records; nothing fails from here on. */
static void keep_details(tk_table *t)
{
    for (uint32_t i = 0; i < t->step_count; i++) {
        const tk_step *step = &t->steps[i];
        if (!step->renewed)
            continue;
        tk_record *r = tk_record_at(t, step->record);
        tk_intern_give(&t->intern, &t->mem, r->detail);
        if (TK_KIND(step->now) == TK_CONTAINER)
            tk_intern_give(&t->intern, &t->mem, step->extra);
        r->detail = step->new_detail;
        if (TK_KIND(r->now) == TK_CONTAINER)
            r->extra = step->new_extra;
    }
}

/* A record that this scan has not seen is absent now. Returns whether nothing is left to tell of it. */
static bool vanish(tk_table *t, tk_record *r)
{
    if (r->seen >= t->epoch || TK_STATE(r->now) == TK_ABSENT)
        return false;
    tk_set_now(t, r, TK_STATUS(TK_KIND(r->now), TK_ABSENT));
    return TK_STATE(r->old) == TK_ABSENT;
}

static void sweep_pod(tk_table *t, uint32_t pod)
{
    bool forget = false;
    for (uint32_t i = tk_pod_at(t, pod)->first; i != TK_NONE; i = tk_record_at(t, i)->next)
        forget |= vanish(t, tk_record_at(t, i));
    if (forget)
        tk_remove_absent(t, pod);
}

/* A pass over all records in the order of memory; pods with records to forget are gathered first, so that a
 * pod's list is walked once. */
static void sweep_all(tk_table *t)
{
    uint32_t gathered = 0;
    for (uint32_t i = 0; i < t->records.used_up; i++) {
        tk_record *r = tk_record_at(t, i);
        if (r->pod == TK_NONE || !vanish(t, r))
            continue;
        tk_pod *p = tk_pod_at(t, r->pod);
        if (!p->gathered) {
            p->gathered = true;
            t->scratch[gathered++] = r->pod;
        }
    }
    for (uint32_t i = 0; i < gathered; i++) {
        tk_pod_at(t, t->scratch[i])->gathered = false;
        tk_remove_absent(t, t->scratch[i]);
    }
}

/* Starts a new scan. Records' marks are wiped before the counter could come round to them. */
static void begin(tk_table *t)
{
    t->step_count = 0;
    if (t->epoch < UINT32_MAX / 2)
        return;
    for (uint32_t i = 0; i < t->records.used_up; i++)
        tk_record_at(t, i)->seen = 0;
    t->epoch = 1;
}

static void end(tk_table *t)
{
    t->epoch += t->step_count + 1;
    t->step_count = 0;
    if (t->step_capacity > STEPS_KEPT) {
        tk_mem_free(&t->mem, t->steps, t->step_capacity * sizeof *t->steps);
        t->steps = NULL;
        t->step_capacity = 0;
    }
}

tk_code tk_scan(tk_table *t, const tk_text *only, tk_list sandboxes, tk_list containers, tk_fault *fault)
{
    scan s = {.t = t, .only = only};
    *fault = (tk_fault){0};
    begin(t);
    uint32_t pod = only != NULL ? tk_find_pod(t, *only) : TK_NONE;
    uint32_t before = t->present;
    if (only != NULL)
        before = pod != TK_NONE ? tk_pod_at(t, pod)->present : 0;
    tk_code code = scan_list(&s, sandboxes, TK_SANDBOX, fault);
    if (code == TK_OK)
        code = scan_list(&s, containers, TK_CONTAINER, fault);
    if (code == TK_OK)
        fault->code = code = read_details(t);
    if (code) {
        undo(t);
    } else {
        keep_details(t);
        if (s.returned < before && only != NULL)
            sweep_pod(t, pod);
        else if (s.returned < before)
            sweep_all(t);
    }
    end(t);
    return code;
}

void tk_commit_pod(tk_table *t, tk_text uid)
{
    uint32_t pod = tk_find_pod(t, uid);
    if (pod == TK_NONE)
        return;
    bool forget = false;
    for (uint32_t i = tk_pod_at(t, pod)->first; i != TK_NONE; i = tk_record_at(t, i)->next) {
        tk_record *r = tk_record_at(t, i);
        tk_set_old(t, r, r->now);
        forget |= TK_STATE(r->now) == TK_ABSENT;
    }
    if (forget)
        tk_remove_absent(t, pod);
}
