/* Protobuf's wire format, read strictly (as the Go kubelet's library does).
 *
 * Error convention of all of csrc/: a function that can fail returns a tk_code, TK_OK being 0. Faults of the
 * input leave the offset in the reader's `fault`, counted from the start of the message that is read.
 *
 * The plain-Python twin is trio_kubelet/native/wire.py: same faults at the same offsets.
 */
#ifndef TK_WIRE_H
#define TK_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum {
    TK_OK = 0,
    TK_NOMEM,
    TK_TRUNCATED_VARINT,
    TK_LONG_VARINT,
    TK_BAD_FIELD_NUMBER,
    TK_BAD_WIRE_TYPE,
    TK_TRUNCATED_FIXED,
    TK_TRUNCATED_LENGTH,
    TK_UNMATCHED_END_GROUP,
    TK_OPEN_GROUP,
    TK_DEEP_GROUP,
    TK_NOT_UTF8,
} tk_code;

/* What went wrong, in words (for TK_OK an empty string). */
const char *tk_reason(int code);

enum { TK_VARINT, TK_FIXED64, TK_LENGTH, TK_START_GROUP, TK_END_GROUP, TK_FIXED32 };

#define TK_MAX_GROUP_DEPTH 100

/* Bytes of the answer, not owned. */
typedef struct {
    const uint8_t *data;
    size_t size;
} tk_text;

/* A cursor over a message or a part of it. */
typedef struct {
    const uint8_t *start; /* of the outermost message: offsets count from here */
    const uint8_t *pos;
    const uint8_t *end;
    size_t fault; /* offset of the fault, valid after an error */
} tk_reader;

typedef struct {
    const uint8_t *at; /* where the tag stands */
    uint32_t number;
    uint32_t type;
} tk_tag;

tk_code tk_read_any_varint(tk_reader *r, uint64_t *value);

/* Most varints are one byte. */
static inline tk_code tk_read_varint(tk_reader *r, uint64_t *value)
{
    if (r->pos == r->end || *r->pos >= 0x80)
        return tk_read_any_varint(r, value);
    *value = *r->pos++;
    return TK_OK;
}

tk_code tk_read_tag(tk_reader *r, tk_tag *tag);
tk_code tk_read_bytes(tk_reader *r, tk_text *text);
/* As tk_read_bytes, and the bytes must be UTF-8. */
tk_code tk_read_text(tk_reader *r, tk_text *text);
/* Passes over the value behind `tag`, checking it. */
tk_code tk_skip(tk_reader *r, tk_tag tag);

/* Length of the well-formed UTF-8 sequence at p (n > 0 bytes left), 0 when there is none. */
size_t tk_utf8_sequence(const uint8_t *p, size_t n);

bool tk_is_utf8(const uint8_t *p, size_t n);

#endif
