/* What tests and fuzz targets share: checks that stay on in every build, and a table's own consistency. */
#ifndef TK_TEST_SUPPORT_H
#define TK_TEST_SUPPORT_H

#include "tk.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                                   \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            fprintf(stderr, "%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__, #condition);          \
            abort();                                                                                       \
        }                                                                                                  \
    } while (0)

/* The tests of test_repeats.c. */
void test_repeats(void);
/* What came, in memory that ends where it does. */
void receive_exactly(tk_repeats *r, const uint8_t *bytes, size_t size, double now);

/* Counts everything a second time and compares. */
void check_consistency(const tk_table *t);

/* A digest of all a table shows: pods, their views, counts. */
uint64_t digest_of(tk_table *t);

/* Commits one pod. */
static inline void commit_pod(tk_table *t, const void *uid, size_t size)
{
    uint64_t end = size;
    tk_commit(t, uid, &end, 1);
}

/* A list message under construction. */
typedef struct {
    uint8_t bytes[1 << 16];
    size_t size;
} writer;

void put_varint(writer *w, uint64_t value);
void put_number(writer *w, uint32_t field, uint64_t value);
void put_bytes(writer *w, uint32_t field, const void *data, size_t size);
void put_string(writer *w, uint32_t field, const char *text);
void put_pair(writer *w, uint32_t field, const char *key, const char *value);
void put_container(writer *list, const char *id, const char *uid, uint64_t state, uint64_t created_at);
void put_sandbox(writer *list, const char *id, const char *uid, uint64_t state, uint64_t created_at);

#endif
