#include "intern.h"

typedef struct {
    uint32_t references;
    uint32_t hash;
    uint32_t n;
    uint32_t ends[TK_INTERN_MAX]; /* of the first n texts */
    uint8_t bytes[];
} blob;

static blob *blob_at(const tk_intern *intern, uint32_t item)
{
    return *(blob **)tk_pool_at(&intern->blobs, item, sizeof(blob *));
}

static size_t blob_size(const blob *b)
{
    return sizeof *b + (b->n == 0 ? 0 : b->ends[b->n - 1]);
}

static tk_text text_of(const blob *b, uint32_t i)
{
    uint32_t start = i == 0 ? 0 : b->ends[i - 1];
    return (tk_text){.data = b->bytes + start, .size = b->ends[i] - start};
}

void tk_intern_init(tk_intern *intern)
{
    *intern = (tk_intern){0};
    tk_pool_init(&intern->blobs, sizeof(blob *));
}

void tk_intern_free(tk_intern *intern, tk_mem *mem)
{
    size_t slots = intern->index.bits == 0 ? 0 : (size_t)1 << intern->index.bits;
    for (size_t i = 0; i < slots; i++) {
        if (intern->index.slots[i].value != 0) {
            blob *b = blob_at(intern, intern->index.slots[i].value - 1);
            tk_mem_free(mem, b, blob_size(b));
        }
    }
    tk_index_free(&intern->index, mem);
    tk_pool_free(&intern->blobs, mem);
}

static bool same(const blob *b, const tk_text *texts, uint32_t n)
{
    if (b->n != n)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        tk_text text = text_of(b, i);
        if (text.size != texts[i].size || memcmp(text.data, texts[i].data, text.size) != 0)
            return false;
    }
    return true;
}

static tk_code new_blob(tk_mem *mem, const tk_text *texts, uint32_t n, uint32_t hash, blob **made)
{
    size_t size = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (texts[i].size > UINT32_MAX - size)
            return TK_NOMEM;
        size += texts[i].size;
    }
    blob *b = tk_mem_resize(mem, NULL, 0, sizeof *b + size);
    if (b == NULL)
        return TK_NOMEM;
    *b = (blob){.references = 1, .hash = hash, .n = n};
    size = 0;
    for (uint32_t i = 0; i < n; i++) {
        memcpy(b->bytes + size, texts[i].data, texts[i].size);
        size += texts[i].size;
        b->ends[i] = (uint32_t)size;
    }
    *made = b;
    return TK_OK;
}

tk_code tk_intern_take(tk_intern *intern, tk_mem *mem, const tk_seed *seed, const tk_text *texts, uint32_t n,
                       uint32_t *number)
{
    uint64_t h = seed->a;
    for (uint32_t i = 0; i < n; i++)
        h = tk_fold(h ^ seed->c, tk_hash_bytes(seed, texts[i]) ^ seed->b);
    uint32_t hash = (uint32_t)(h >> 32);
    tk_code code = tk_index_reserve(&intern->index, mem);
    if (code)
        return code;
    uint32_t mask = (uint32_t)((UINT64_C(1) << intern->index.bits) - 1);
    for (uint32_t i = tk_index_home(&intern->index, hash); intern->index.slots[i].value != 0; i = (i + 1) & mask) {
        uint32_t item = intern->index.slots[i].value - 1;
        if (intern->index.slots[i].hash == hash && same(blob_at(intern, item), texts, n)) {
            blob_at(intern, item)->references++;
            *number = item + 1;
            return TK_OK;
        }
    }
    uint32_t item;
    blob *b;
    if ((code = new_blob(mem, texts, n, hash, &b)) != TK_OK)
        return code;
    if ((code = tk_pool_take(&intern->blobs, mem, &item)) != TK_OK) {
        tk_mem_free(mem, b, blob_size(b));
        return code;
    }
    *(blob **)tk_pool_at(&intern->blobs, item, sizeof b) = b;
    tk_index_add(&intern->index, hash, item);
    *number = item + 1;
    return TK_OK;
}

void tk_intern_give(tk_intern *intern, tk_mem *mem, uint32_t number)
{
    if (number == 0)
        return;
    blob *b = blob_at(intern, number - 1);
    if (--b->references > 0)
        return;
    tk_index_remove(&intern->index, b->hash, number - 1);
    tk_mem_free(mem, b, blob_size(b));
    tk_pool_give(&intern->blobs, number - 1);
}

tk_text tk_intern_text(const tk_intern *intern, uint32_t number, uint32_t i)
{
    static const uint8_t nothing[1];
    if (number == 0 || i >= blob_at(intern, number - 1)->n)
        return (tk_text){.data = nothing, .size = 0};
    return text_of(blob_at(intern, number - 1), i);
}
