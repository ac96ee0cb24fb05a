/* The quick reader against the exact one: what it accepts, the exact one accepts with the same result. */
#include "../tests/support.h"

#include "fast.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    tk_kind kind = data[0] & 1 ? TK_CONTAINER : TK_SANDBOX;
    size_t item_size = size - 1;
    /* As a list's only entry, with readable bytes behind it and a wall behind those. */
    uint8_t *list = malloc(size + 10 + TK_FAST_SLACK);
    CHECK(list != NULL);
    writer head = {.size = 0};
    put_varint(&head, 1 << 3 | TK_LENGTH);
    put_varint(&head, item_size);
    memcpy(list, head.bytes, head.size);
    memcpy(list + head.size, data + 1, item_size);
    memset(list + head.size + item_size, data[0], TK_FAST_SLACK);
    const uint8_t *item = list + head.size, *at = list, *end = item + item_size + TK_FAST_SLACK;

    tk_entry fast, exact;
    tk_details details;
    uint64_t high = 0;
    size_t fault = 0;
    tk_code code = tk_read_entry(list, (tk_text){item, item_size}, kind, &exact, &details, &fault);
    CHECK(code == TK_OK || fault <= head.size + item_size);
    bool quick = tk_fast_entry(&at, end, kind, &fast, &high);
    if (quick) {
        CHECK(at == item + item_size);
        uint64_t found = tk_best_count_high()(list, (size_t)(at - list));
        if (found == high) {
            CHECK(code == TK_OK);
            CHECK(tk_same_text(fast.id, exact.id) && tk_same_text(fast.uid, exact.uid));
            CHECK(fast.state == exact.state && fast.kind == exact.kind);
            CHECK(fast.created_at == exact.created_at && fast.attempt == exact.attempt);
            CHECK(fast.has_metadata == exact.has_metadata && fast.has_image == exact.has_image);
            CHECK(fast.item.data == exact.item.data && fast.item.size == exact.item.size);
        } else {
            CHECK(found > high); /* something is not ASCII */
            CHECK(code == TK_OK || code == TK_NOT_UTF8);
        }
    }
    free(list);
    return 0;
}
