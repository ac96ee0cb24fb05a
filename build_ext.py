"""Builds the C extension `trio_kubelet.native._core` from `csrc/`.

setuptools calls it through `cffi_modules`; `python build_ext.py` builds it in place for developers. The
declarations below are what Python sees of `csrc/tk.h`: the compiler holds every one of them against the
headers, as the generated code is compiled with them included and warnings are errors in a checked build.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

from cffi import FFI

DECLARATIONS = """
typedef struct tk_table tk_table;
typedef struct { const uint8_t *data; size_t size; } tk_text;
typedef struct { int32_t code; int32_t kind; uint64_t message; uint64_t offset; } tk_fault;
typedef struct {
    const uint8_t *text;
    const uint64_t *ends;
    const int64_t *numbers;
    size_t text_count;
    size_t number_count;
} tk_answer;
typedef struct {
    uint32_t containers[5];
    uint32_t running_pods;
    uint32_t entries;
    uint64_t bytes;
    uint64_t allocations;
} tk_totals;

tk_table *tk_table_new(uint64_t seed);
void tk_table_free(tk_table *t);
int tk_relist(tk_table *t, const tk_text *sandboxes, size_t sandbox_count, const tk_text *containers,
              size_t container_count, tk_fault *fault, tk_answer *answer);
int tk_relist_pod(tk_table *t, const uint8_t *uid, size_t uid_size, const tk_text *sandboxes,
                  size_t sandbox_count, const tk_text *containers, size_t container_count, tk_fault *fault,
                  tk_answer *answer);
void tk_commit(tk_table *t, const uint8_t *uids, const uint64_t *ends, size_t count);
int tk_view_pod(tk_table *t, const uint8_t *uid, size_t uid_size, tk_answer *answer);
int tk_list_pods(tk_table *t, int running, tk_answer *answer);
void tk_count(const tk_table *t, tk_totals *totals);
const char *tk_reason(int code);

uint32_t tk_fnv1a32(const uint8_t *data, size_t size);
void tk_fnv1a128(const uint8_t *data, size_t size, uint8_t *out);
uint32_t tk_container_hash(const uint8_t *name, size_t name_size, const uint8_t *image, size_t image_size);

typedef struct {
    int64_t since_seconds;
    int64_t lines_left;
    int64_t bytes_left;
    uint64_t consumed;
    uint64_t written;
    int32_t since_nanos;
    uint8_t has_since;
    uint8_t want_stdout;
    uint8_t want_stderr;
    uint8_t timestamps;
    uint8_t new_line;
} tk_log_copy;

int tk_log_copy_lines(tk_log_copy *copy, const uint8_t *in, size_t in_size, uint8_t *out, size_t out_size);

typedef struct {
    const char *base;
    const char *name;
    const char *line;
    const char *field;
    int32_t kind;
    int32_t same;
} tk_figure;

size_t tk_read_figures(const tk_figure *figures, size_t count, const char *directories,
                       size_t directory_count, uint64_t *values, uint64_t *there, uint8_t *room,
                       size_t room_size);

typedef struct tk_arenas tk_arenas;
tk_arenas *tk_arenas_new(size_t count);
void tk_arenas_free(tk_arenas *arenas);
void *tk_arena_alloc(void *arenas, size_t size);
void tk_arena_free(void *arenas, void *p, size_t size);

typedef struct tk_repeats tk_repeats;
typedef struct {
    double began;
    uint64_t id;
    int32_t why;
    uint32_t code;
    uint32_t head;
    uint32_t data;
    uint32_t tail;
    const uint8_t *answer;
} tk_end;
typedef struct {
    double seconds;
    uint64_t id;
} tk_pass;
typedef struct {
    const tk_end *ends;
    const uint8_t *out;
    size_t end_count;
    size_t out_size;
    double next;
    double newest;
    uint32_t under_way;
    uint32_t passed;
    uint8_t is_connected;
    uint8_t is_odd;
    uint8_t takes_calls;
} tk_repeats_view;

tk_repeats *tk_repeats_new(const uint8_t *headers, size_t size);
void tk_repeats_free(tk_repeats *r);
int tk_repeats_add(tk_repeats *r, const uint8_t *body, size_t size, double due, double period, double timeout,
                   uint64_t *id);
bool tk_repeats_stop(tk_repeats *r, uint64_t id, double *due);
void tk_repeats_connected(tk_repeats *r);
void tk_repeats_lost(tk_repeats *r);
void tk_repeats_received(tk_repeats *r, const uint8_t *data, size_t size, double now);
void tk_repeats_turn(tk_repeats *r, double now, uint32_t together);
void tk_repeats_serve(tk_repeats *r, int socket, int event, double ahead);
void tk_repeats_leave(tk_repeats *r);
void tk_repeats_sent(tk_repeats *r, size_t size);
void tk_repeats_learn(tk_repeats *r, int tail, const uint8_t *block, size_t size);
const tk_repeats_view *tk_repeats_look(const tk_repeats *r);
size_t tk_repeats_passed(tk_repeats *r, tk_pass *passed, size_t room);

#define TK_LOG_FULL ...
#define TK_NOMEM ...
#define TK_CONTAINER ...
"""

CHECKED_DECLARATIONS = """
void tk_fail_after(tk_table *t, int64_t count);
uint64_t tk_read_words(const uint8_t *data, size_t size);
"""
"""What tests and benchmarks call besides; not in what users build."""

CHECKED = os.environ.get("TRIO_KUBELET_CHECKED_BUILD") == "1"
"""A build for the project's own tests. There a warning is an error; the next compiler's must not
keep a user from installing.
"""

SOURCES = [
    "arena",
    "mem",
    "wire",
    "entry",
    "fast",
    "hash",
    "crilog",
    "figures",
    "frames",
    "repeats",
    "repeats_answers",
    "repeats_serve",
    "index",
    "pool",
    "intern",
    "table",
    "scan",
    "order",
    "out",
    "tk",
]

# Setuptools builds from the project's directory and takes relative paths only.
ffibuilder = FFI()
ffibuilder.cdef(DECLARATIONS + (CHECKED_DECLARATIONS if CHECKED else ""))
ffibuilder.set_source(
    "trio_kubelet.native._core",
    '#include "tk.h"',
    sources=[f"csrc/{name}.c" for name in SOURCES],
    depends=[str(header) for header in sorted(pathlib.Path("csrc").glob("*.h"))],
    include_dirs=["csrc"],
    libraries=["m"],
    define_macros=[("TK_CHECKED", "1")] if CHECKED else [],
    extra_compile_args=[
        "-std=gnu11",
        "-O3",
        "-Wall",
        "-Wextra",
        "-fvisibility=hidden",
        *(["-Werror"] if CHECKED else []),
    ],
)

if __name__ == "__main__":
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=pathlib.Path(__file__).resolve().parent,
        env={**os.environ, "TRIO_KUBELET_CHECKED_BUILD": "1"},
        check=True,
    )
