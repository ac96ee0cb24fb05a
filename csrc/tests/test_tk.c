/* The C core by itself, to be run under the sanitizers and valgrind. What a relist means is tested from
 * Python against the oracle; here it is memory, faults half-way, and lives of many records. */
#include "arena.h"
#include "fast.h"
#include "support.h"

#include <string.h>
#include <unistd.h>

static writer sandboxes, containers;

static int relist(tk_table *t, tk_fault *fault, tk_answer *answer)
{
    tk_text first = {sandboxes.bytes, sandboxes.size}, second = {containers.bytes, containers.size};
    int code = tk_relist(t, &first, 1, &second, 1, fault, answer);
    check_consistency(t);
    return code;
}

static void clear(void)
{
    sandboxes.size = containers.size = 0;
}

static void commit(tk_table *t, const char *uid)
{
    commit_pod(t, uid, strlen(uid));
    check_consistency(t);
}

static void commit_all(tk_table *t)
{
    while (t->changed_count > 0) {
        tk_text uid = tk_pod_uid(t, tk_pod_at(t, t->changed[0]));
        uint8_t copy[128];
        CHECK(uid.size <= sizeof copy);
        memcpy(copy, uid.data, uid.size);
        commit_pod(t, copy, uid.size);
    }
    check_consistency(t);
}

static void test_a_life(void)
{
    tk_table *t = tk_table_new(1);
    tk_fault fault;
    tk_answer answer;
    clear();
    put_sandbox(&sandboxes, "s", "u", 0, 5);
    put_container(&containers, "c", "u", 1, 6);
    CHECK(relist(t, &fault, &answer) == TK_OK);
    CHECK(answer.text_count == 3 && answer.number_count == 3);
    CHECK(answer.numbers[0] == 2 && answer.numbers[1] == TK_EVENT_STARTED);
    commit(t, "u");
    CHECK(relist(t, &fault, &answer) == TK_OK && answer.text_count == 0);
    clear();
    CHECK(relist(t, &fault, &answer) == TK_OK);
    CHECK(answer.number_count == 5); /* both died and were removed */
    commit(t, "u");
    CHECK(t->pod_count == 0 && t->record_index.used == 0 && t->intern.index.used == 0);
    tk_table_free(t);
}

static void test_a_fault_changes_nothing(void)
{
    tk_table *t = tk_table_new(2);
    tk_fault fault;
    tk_answer answer;
    clear();
    for (int i = 0; i < 50; i++) {
        char id[16];
        snprintf(id, sizeof id, "c%d", i);
        put_container(&containers, id, i % 2 ? "u" : "v", 1, 1);
    }
    CHECK(relist(t, &fault, &answer) == TK_OK);
    uint64_t before = digest_of(t);
    size_t size = containers.size;
    for (size_t cut = 1; cut < size; cut++) { /* with another state, ending too early */
        clear();
        for (int i = 0; i < 50; i++) {
            char id[16];
            snprintf(id, sizeof id, "%c%d", i % 3 ? 'c' : 'n', i);
            put_container(&containers, id, "u", 2, 2);
        }
        containers.size -= cut % containers.size;
        if (relist(t, &fault, &answer) != TK_OK) {
            CHECK(fault.kind == TK_CONTAINER && fault.offset <= containers.size);
            CHECK(digest_of(t) == before);
        } else {
            tk_table_free(t);
            t = tk_table_new(cut);
            clear();
            for (int i = 0; i < 50; i++) {
                char id[16];
                snprintf(id, sizeof id, "c%d", i);
                put_container(&containers, id, i % 2 ? "u" : "v", 1, 1);
            }
            CHECK(relist(t, &fault, &answer) == TK_OK);
            before = digest_of(t);
        }
    }
    tk_table_free(t);
}

static uint32_t random_number(uint32_t *state, uint32_t below)
{
    *state = *state * 1664525 + 1013904223;
    return (*state >> 8) % below;
}

/* A node whose pods and containers come and go at random; memory fails now and then. */
static void test_random_lives(void)
{
    uint32_t random = 7;
    tk_table *t = tk_table_new(3);
    for (int round = 0; round < 3000; round++) {
        tk_fault fault;
        tk_answer answer;
        clear();
        uint32_t n = random_number(&random, 120);
        for (uint32_t i = 0; i < n; i++) {
            char id[128], uid[80];
            uint32_t number = random_number(&random, 150);
            snprintf(id, sizeof id, "%0*u", number % 5 == 0 ? 100 : 64, number);
            snprintf(uid, sizeof uid, "%0*u", number % 7 == 0 ? 60 : 36, number % 11);
            if (number % 4 == 0)
                put_sandbox(&sandboxes, id, uid, random_number(&random, 3), random_number(&random, 3));
            else
                put_container(&containers, id, uid, random_number(&random, 5), random_number(&random, 3));
        }
        if (random_number(&random, 4) == 0)
            containers.size -= containers.size > 10 ? random_number(&random, 10) : 0;
        tk_fail_after(t, random_number(&random, 3) == 0 ? (int64_t)random_number(&random, 40) : -1);
        uint64_t before = 0;
        bool limited = t->mem.fail_after >= 0;
        if (!limited)
            before = digest_of(t);
        int code = relist(t, &fault, &answer);
        tk_fail_after(t, -1);
        if (code != TK_OK && !limited)
            CHECK(digest_of(t) == before);
        digest_of(t);
        if (random_number(&random, 2) == 0)
            commit_all(t);
        else
            commit(t, "000000000000000000000000000000000003");
    }
    clear();
    tk_fault fault;
    tk_answer answer;
    CHECK(relist(t, &fault, &answer) == TK_OK);
    commit_all(t);
    CHECK(t->pod_count == 0 && t->intern.index.used == 0);
    tk_table_free(t);
}

static void test_scan_numbers_come_round(void)
{
    tk_table *t = tk_table_new(4);
    tk_fault fault;
    tk_answer answer;
    clear();
    put_container(&containers, "c", "u", 1, 1);
    CHECK(relist(t, &fault, &answer) == TK_OK);
    commit(t, "u");
    t->epoch = UINT32_MAX / 2;
    CHECK(relist(t, &fault, &answer) == TK_OK && answer.text_count == 0);
    CHECK(t->epoch < 10);
    CHECK(relist(t, &fault, &answer) == TK_OK && answer.text_count == 0);
    tk_table_free(t);
}

static void test_steady_relists_allocate_nothing(void)
{
    tk_table *t = tk_table_new(5);
    tk_fault fault;
    tk_answer answer;
    clear();
    for (int i = 0; i < 300; i++) {
        char id[16];
        snprintf(id, sizeof id, "c%d", i);
        put_container(&containers, id, "u", 1, 1);
    }
    for (int i = 0; i < 3; i++)
        CHECK(relist(t, &fault, &answer) == TK_OK);
    commit(t, "u");
    CHECK(relist(t, &fault, &answer) == TK_OK);
    tk_fail_after(t, 0);
    CHECK(relist(t, &fault, &answer) == TK_OK && answer.text_count == 0);
    tk_table_free(t);
}

static void test_counting_high_bytes(void)
{
    static uint8_t bytes[20000];
    uint32_t random = 1;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)random_number(&random, 256);
    tk_count_high *best = tk_best_count_high();
    for (size_t n = 0; n < 700; n++) {
        uint64_t expected = 0;
        for (size_t i = 0; i < n; i++)
            expected += bytes[n + i] >> 7;
        CHECK(best(bytes + n, n) == expected);
    }
    memset(bytes, 0xff, sizeof bytes);
    CHECK(best(bytes, sizeof bytes) == sizeof bytes);
}

static void test_hashes(void)
{
    uint8_t out[16];
    CHECK(tk_fnv1a32((const uint8_t *)"foobar", 6) == 0xbf9cf968);
    tk_fnv1a128((const uint8_t *)"foobar", 6, out);
    CHECK(out[0] == 0x34 && out[15] == 0x18);
    CHECK(tk_container_hash((const uint8_t *)"web", 3, (const uint8_t *)"nginx", 5) == 0x9690f4d);
}

static void check_copy(tk_log_copy *c, const char *in, int code, const char *out)
{
    size_t size = strlen(in), room = size + 64;
    uint8_t *given = malloc(size + 1), *taken = malloc(room);
    CHECK(given != NULL && taken != NULL);
    memcpy(given, in, size);
    CHECK(tk_log_copy_lines(c, given, size, taken, room) == code);
    CHECK(c->written == strlen(out) && memcmp(taken, out, c->written) == 0);
    free(given);
    free(taken);
}

static void test_log_lines(void)
{
    static const char out[] = "2016-10-06T00:17:09.5Z stdout F one\n", part[] = "2016-10-06T00:17:10Z stderr P two\n";
    char both[128], line[64];
    snprintf(both, sizeof both, "%s%s", out, part);
    tk_log_copy all = {.lines_left = -1, .bytes_left = -1, .want_stdout = 1, .want_stderr = 1, .new_line = 1}, c = all;
    check_copy(&c, both, TK_LOG_MORE, "one\ntwo");
    CHECK(c.new_line == 0 && c.consumed == strlen(both));
    c = all, c.timestamps = 1;
    check_copy(&c, both, TK_LOG_MORE, "2016-10-06T00:17:09.500000000Z one\n2016-10-06T00:17:10.000000000Z two");
    c = all, c.bytes_left = 5;
    check_copy(&c, both, TK_LOG_DONE, "one\nt");
    c = all, c.lines_left = 1;
    check_copy(&c, both, TK_LOG_DONE, "one\n");
    c = all, c.has_since = 1, c.since_seconds = 1475713030;
    check_copy(&c, both, TK_LOG_MORE, "two");
    for (size_t cut = 0; cut < strlen(out); cut++) { /* a line without end, and one that ends too early */
        snprintf(line, sizeof line, "%.*s", (int)cut, out);
        c = all;
        check_copy(&c, line, TK_LOG_MORE, "");
        CHECK(c.consumed == 0);
        snprintf(line, sizeof line, "%.*s\n", (int)cut, out);
        c = all;
        uint8_t room[128];
        int code = tk_log_copy_lines(&c, (const uint8_t *)line, strlen(line), room, sizeof room);
        CHECK(code == (cut > strlen("2016-10-06T00:17:09.5Z stdout F") ? TK_LOG_MORE : TK_LOG_ODD));
    }
    c = all;
    uint8_t room[16];
    CHECK(tk_log_copy_lines(&c, (const uint8_t *)out, strlen(out), room, sizeof room) == TK_LOG_FULL);
    CHECK(c.consumed == 0 && c.written == 0);
}

/* A figure of a text that ends where its memory does. */
static void check_figure(const char *line, const char *field, int kind, const char *text, int there, uint64_t value)
{
    size_t size = strlen(text);
    uint8_t *given = malloc(size + 1);
    CHECK(given != NULL);
    given[0] = '\n';
    memcpy(given + 1, text, size);
    tk_figure f = {"", "", line, field, kind, 0};
    uint64_t found = 7;
    CHECK(tk_find_figure(&f, given + 1, size, &found) == there && found == value);
    free(given);
}

static void test_finding_figures(void)
{
    check_figure("", "", TK_NUMBER, "42", 1, 42);
    check_figure("", "", TK_NUMBER, "max\n", 1, UINT64_MAX);
    check_figure("", "", TK_NUMBER, "18446744073709551616 ", 1, UINT64_MAX);
    check_figure("", "", TK_NUMBER, "-1", 0, 0);
    check_figure("", "", TK_NUMBER, "", 0, 0);
    check_figure("\nb ", "", TK_NUMBER, "ab 1\nb 2", 1, 2);
    check_figure("\nb ", "", TK_NUMBER, "b ", 0, 0);
    check_figure("", " ", TK_NUMBER, "1 2", 1, 2);
    check_figure("\na", "x=", TK_NUMBER, "a\nx=1", 0, 0);
    check_figure("\na", "x=", TK_HUNDREDTHS, "a x=1.25", 1, 125);
    check_figure("", "", TK_HUNDREDTHS, "1.2", 0, 0);
    check_figure("", "", TK_HUNDREDTHS, "99999999999999999999.25", 1, UINT64_MAX);
    check_figure("", "", TK_LINES, "1\n\n3", 1, 2);
    check_figure("", "", TK_TEXT, "four", 1, 4);
}

static void test_reading_figures(void)
{
    char base[] = "/tmp/tk-figures-XXXXXX", path[64];
    CHECK(mkdtemp(base) != NULL);
    snprintf(path, sizeof path, "%s/n", base);
    FILE *file = fopen(path, "w");
    CHECK(file != NULL && fputs("5\n", file) >= 0 && fclose(file) == 0);
    tk_figure plan[] = {{base, "/n", "", "", TK_NUMBER, 0}, {base, "/n", "", "", TK_TEXT, 1}};
    uint64_t values[6], there[3];
    size_t need = 2 * (TK_FILE_MOST + 1), size = need + 2;
    uint8_t *room = malloc(size);
    CHECK(room != NULL);
    /* The same directory, one that is not there, the same again: there is room for two texts of two bytes. */
    CHECK(tk_read_figures(plan, 2, "\0/x\0", 3, values, there, room, size) == 3);
    CHECK(there[0] == 3 && there[1] == 0 && there[2] == 3);
    CHECK(values[0] == 5 && values[1] == 2 && values[2] == 0 && values[3] == 0 && values[4] == 5);
    CHECK(memcmp(room, "5\n5\n", 4) == 0);
    CHECK(tk_read_figures(plan, 2, "\0\0", 3, values, there, room, need + 1) == 1);
    CHECK(tk_read_figures(plan, 2, "\0\0", 3, values, there, room, need - 1) == 0);
    CHECK(tk_read_figures(plan, TK_FIGURES_MOST + 1, "", 1, values, there, room, size) == 0);
    free(room);
    CHECK(unlink(path) == 0 && rmdir(base) == 0);
}

static void test_arenas(void)
{
    enum { COUNT = 5 };
    tk_arenas *arenas = tk_arenas_new(COUNT);
    CHECK(arenas != NULL);
    char *taken[COUNT + 1];
    for (int i = 0; i <= COUNT; i++) {
        taken[i] = tk_arena_alloc(arenas, TK_ARENA_SIZE);
        CHECK(taken[i] != NULL);
        memset(taken[i], i + 1, TK_ARENA_SIZE);
        if (0 < i && i < COUNT)
            CHECK(taken[i] == taken[i - 1] + TK_ARENA_SIZE);
    }
    CHECK((uintptr_t)taken[0] % TK_HUGE_PAGE == 0);
    CHECK(taken[COUNT] < taken[0] || taken[COUNT] >= taken[0] + COUNT * TK_ARENA_SIZE); /* the system's */
    char *other = tk_arena_alloc(arenas, TK_ARENA_SIZE / 4);
    CHECK(other != NULL);
    memset(other, 1, TK_ARENA_SIZE / 4);
    tk_arena_free(arenas, other, TK_ARENA_SIZE / 4);
    tk_arena_free(arenas, taken[COUNT], TK_ARENA_SIZE);
    tk_arena_free(arenas, taken[1], TK_ARENA_SIZE);
    CHECK(taken[0][TK_ARENA_SIZE - 1] == 1 && taken[2][0] == 3); /* its neighbours are as they were */
    CHECK(tk_arena_alloc(arenas, TK_ARENA_SIZE) == taken[1]);
    for (int i = 0; i < COUNT; i++)
        tk_arena_free(arenas, taken[i], TK_ARENA_SIZE);
    CHECK(tk_arena_alloc(arenas, TK_ARENA_SIZE) == taken[0] && taken[0][0] == 0); /* nobody had a part of it */
    tk_arenas_free(arenas);
    tk_arenas_free(NULL);
    CHECK(tk_arenas_new((size_t)1 << 30) == NULL && tk_arenas_new(SIZE_MAX) == NULL);
}

int main(void)
{
    test_a_life();
    test_a_fault_changes_nothing();
    test_random_lives();
    test_scan_numbers_come_round();
    test_steady_relists_allocate_nothing();
    test_counting_high_bytes();
    test_hashes();
    test_log_lines();
    test_finding_figures();
    test_reading_figures();
    test_arenas();
    test_repeats();
    puts("csrc: all good");
    return 0;
}
