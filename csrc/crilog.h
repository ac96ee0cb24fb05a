/* Lines of the CRI log format copied to their reader: `TIME STREAM TAGS CONTENT`, one after the other.
 * Twin: trio_kubelet/native/pure_crilog.py, which also takes the lines that have not the usual shape. */
#ifndef TK_CRILOG_H
#define TK_CRILOG_H

#include <stddef.h>
#include <stdint.h>

enum {
    TK_LOG_MORE, /* no whole line is left */
    TK_LOG_FULL, /* the next line may have no room in the output */
    TK_LOG_ODD,  /* the next line is for the twin */
    TK_LOG_DONE, /* as many lines or bytes as were wanted */
};

/* What is wanted, how far it has come, and (consumed, written) what the last call did. */
typedef struct {
    int64_t since_seconds; /* lines before this moment are left out */
    int64_t lines_left;    /* to be read; negative: all */
    int64_t bytes_left;    /* to be written; negative: all */
    uint64_t consumed;
    uint64_t written;
    int32_t since_nanos;
    uint8_t has_since;
    uint8_t want_stdout;
    uint8_t want_stderr;
    uint8_t timestamps; /* whether a line starts with its time, in a fixed width */
    uint8_t new_line;   /* whether the next output starts a line */
} tk_log_copy;

/* Copies whole lines from in to out until it has a reason to stop. */
int tk_log_copy_lines(tk_log_copy *copy, const uint8_t *in, size_t in_size, uint8_t *out, size_t out_size);

#endif
