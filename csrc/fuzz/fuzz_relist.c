/* Two tables with different seeds, one of which trusts no quick reading, led through the same life: the same
 * answers, the same faults, consistent counts, and nothing changed by a fault.
 *
 * The input is a row of steps: an operation, two lengths, and the bytes of two lists. */
#include "../tests/support.h"

#include <string.h>

typedef struct {
    const uint8_t *p;
    size_t left;
} input;

static uint8_t take_byte(input *in)
{
    if (in->left == 0)
        return 0;
    in->left--;
    return *in->p++;
}

/* A copy with nothing behind it that may be read. */
static tk_text take_list(input *in)
{
    size_t n = take_byte(in);
    n |= (size_t)take_byte(in) << 8;
    n = n < in->left ? n : in->left;
    uint8_t *copy = malloc(n > 0 ? n : 1);
    CHECK(copy != NULL);
    if (n > 0)
        memcpy(copy, in->p, n);
    in->p += n;
    in->left -= n;
    return (tk_text){copy, n};
}

static uint64_t never_right(const uint8_t *p, size_t n)
{
    (void)p;
    (void)n;
    return UINT64_MAX;
}

static void check_same_answer(const tk_answer *a, const tk_answer *b)
{
    CHECK(a->text_count == b->text_count && a->number_count == b->number_count);
    if (a->number_count > 0)
        CHECK(memcmp(a->numbers, b->numbers, a->number_count * sizeof *a->numbers) == 0);
    if (a->text_count > 0) {
        CHECK(memcmp(a->ends, b->ends, a->text_count * sizeof *a->ends) == 0);
        size_t bytes = a->ends[a->text_count - 1];
        CHECK(bytes == 0 || memcmp(a->text, b->text, bytes) == 0);
    }
}

static const char *const uids[] = {"", "u", "v", "0123456789012345678901234567890123456789"};

static void relist(tk_table *a, tk_table *b, input *in, const char *only)
{
    tk_text first = take_list(in), second = take_list(in);
    tk_fault fault_a, fault_b;
    tk_answer answer_a, answer_b;
    const uint8_t *uid = (const uint8_t *)only;
    uint64_t before = digest_of(a);
    int code_a, code_b;
    if (only == NULL) {
        code_a = tk_relist(a, &first, 1, &second, 1, &fault_a, &answer_a);
        code_b = tk_relist(b, &first, 1, &second, 1, &fault_b, &answer_b);
    } else {
        code_a = tk_relist_pod(a, uid, strlen(only), &first, 1, &second, 1, &fault_a, &answer_a);
        code_b = tk_relist_pod(b, uid, strlen(only), &first, 1, &second, 1, &fault_b, &answer_b);
    }
    CHECK(code_a == code_b);
    if (code_a == TK_OK) {
        check_same_answer(&answer_a, &answer_b);
    } else {
        CHECK(fault_a.kind == fault_b.kind && fault_a.offset == fault_b.offset);
        CHECK(fault_a.offset <= (fault_a.kind == TK_SANDBOX ? first.size : second.size));
        CHECK(digest_of(a) == before);
    }
    free((void *)(uintptr_t)first.data);
    free((void *)(uintptr_t)second.data);
}

/* Memory runs out somewhere: whatever comes of it, the table is whole. */
static void relist_without_memory(tk_table *t, input *in)
{
    tk_fault fault;
    tk_answer answer;
    tk_fail_after(t, take_byte(in) % 32);
    tk_text first = take_list(in), second = take_list(in);
    (void)tk_relist(t, &first, 1, &second, 1, &fault, &answer);
    tk_fail_after(t, -1);
    check_consistency(t);
    free((void *)(uintptr_t)first.data);
    free((void *)(uintptr_t)second.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input in = {data, size};
    tk_table *a = tk_table_new(1), *b = tk_table_new(2), *c = tk_table_new(3);
    CHECK(a != NULL && b != NULL && c != NULL);
    b->count_high = never_right;
    for (int steps = 0; in.left > 0 && steps < 20; steps++) {
        uint8_t operation = take_byte(&in);
        const char *uid = uids[operation >> 3 & 3];
        switch (operation & 7) {
        case 0:
            relist(a, b, &in, uid);
            break;
        case 1:
            relist_without_memory(c, &in);
            break;
        case 2:
        case 3:
            commit_pod(a, uid, strlen(uid));
            commit_pod(b, uid, strlen(uid));
            commit_pod(c, uid, strlen(uid));
            break;
        default:
            relist(a, b, &in, NULL);
        }
        check_consistency(a);
        CHECK(digest_of(a) == digest_of(b));
    }
    tk_table_free(a);
    tk_table_free(b);
    tk_table_free(c);
    return 0;
}
