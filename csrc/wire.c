#include "wire.h"

#include <string.h>

static const char *const reasons[] = {
    [TK_OK] = "",
    [TK_NOMEM] = "out of memory",
    [TK_TRUNCATED_VARINT] = "varint runs past the end",
    [TK_LONG_VARINT] = "varint does not fit 64 bits",
    [TK_BAD_FIELD_NUMBER] = "field number out of range",
    [TK_BAD_WIRE_TYPE] = "reserved wire type",
    [TK_TRUNCATED_FIXED] = "fixed-width value runs past the end",
    [TK_TRUNCATED_LENGTH] = "length runs past the end",
    [TK_UNMATCHED_END_GROUP] = "end-group without its start",
    [TK_OPEN_GROUP] = "group without its end",
    [TK_DEEP_GROUP] = "groups nested too deep",
    [TK_NOT_UTF8] = "string is not UTF-8",
};

const char *tk_reason(int code)
{
    if (code < 0 || (size_t)code >= sizeof reasons / sizeof *reasons)
        return "unknown error";
    return reasons[code];
}

static tk_code fail(tk_reader *r, const uint8_t *at, tk_code code)
{
    r->fault = (size_t)(at - r->start);
    return code;
}

tk_code tk_read_any_varint(tk_reader *r, uint64_t *value)
{
    const uint8_t *p = r->pos;
    uint64_t v = 0;
    for (unsigned i = 0; i < 10; i++) {
        if (p + i == r->end)
            return fail(r, p, TK_TRUNCATED_VARINT);
        uint64_t byte = p[i];
        if (i == 9 && byte > 1)
            break;
        v |= (byte & 0x7f) << (7 * i);
        if (byte < 0x80) {
            r->pos = p + i + 1;
            *value = v;
            return TK_OK;
        }
    }
    return fail(r, p, TK_LONG_VARINT);
}

tk_code tk_read_tag(tk_reader *r, tk_tag *tag)
{
    tag->at = r->pos;
    uint64_t v;
    tk_code code = tk_read_varint(r, &v);
    if (code)
        return code;
    if (v >> 3 < 1 || v >> 3 > (1u << 29) - 1)
        return fail(r, tag->at, TK_BAD_FIELD_NUMBER);
    tag->number = (uint32_t)(v >> 3);
    tag->type = (uint32_t)(v & 7);
    if (tag->type > TK_FIXED32)
        return fail(r, tag->at, TK_BAD_WIRE_TYPE);
    return TK_OK;
}

tk_code tk_read_bytes(tk_reader *r, tk_text *text)
{
    const uint8_t *at = r->pos;
    uint64_t n;
    tk_code code = tk_read_varint(r, &n);
    if (code)
        return code;
    if (n > (uint64_t)(r->end - r->pos))
        return fail(r, at, TK_TRUNCATED_LENGTH);
    text->data = r->pos;
    text->size = (size_t)n;
    r->pos += n;
    return TK_OK;
}

tk_code tk_read_text(tk_reader *r, tk_text *text)
{
    tk_code code = tk_read_bytes(r, text);
    if (code)
        return code;
    if (!tk_is_utf8(text->data, text->size))
        return fail(r, text->data, TK_NOT_UTF8);
    return TK_OK;
}

static tk_code skip_plain(tk_reader *r, uint32_t type)
{
    if (type == TK_VARINT) {
        uint64_t ignored;
        return tk_read_varint(r, &ignored);
    }
    if (type == TK_LENGTH) {
        tk_text ignored;
        return tk_read_bytes(r, &ignored);
    }
    ptrdiff_t width = type == TK_FIXED64 ? 8 : 4;
    if (width > r->end - r->pos)
        return fail(r, r->pos, TK_TRUNCATED_FIXED);
    r->pos += width;
    return TK_OK;
}

tk_code tk_skip(tk_reader *r, tk_tag tag)
{
    if (tag.type == TK_END_GROUP)
        return fail(r, tag.at, TK_UNMATCHED_END_GROUP);
    if (tag.type != TK_START_GROUP)
        return skip_plain(r, tag.type);
    uint32_t open[TK_MAX_GROUP_DEPTH];
    unsigned depth = 0;
    open[depth++] = tag.number;
    while (depth > 0) {
        if (r->pos == r->end)
            return fail(r, tag.at, TK_OPEN_GROUP);
        tk_tag inner;
        tk_code code = tk_read_tag(r, &inner);
        if (code)
            return code;
        if (inner.type == TK_START_GROUP) {
            if (depth == TK_MAX_GROUP_DEPTH)
                return fail(r, inner.at, TK_DEEP_GROUP);
            open[depth++] = inner.number;
        } else if (inner.type == TK_END_GROUP) {
            if (open[--depth] != inner.number)
                return fail(r, inner.at, TK_UNMATCHED_END_GROUP);
        } else if ((code = skip_plain(r, inner.type)) != TK_OK) {
            return code;
        }
    }
    return TK_OK;
}

size_t tk_utf8_sequence(const uint8_t *p, size_t n)
{
    uint8_t lead = p[0], low = 0x80, high = 0xbf;
    size_t length;
    if (lead < 0x80)
        return 1;
    if (lead >= 0xc2 && lead <= 0xdf) {
        length = 2;
    } else if ((lead & 0xf0) == 0xe0) {
        length = 3;
        if (lead == 0xe0)
            low = 0xa0; /* shorter forms exist */
        else if (lead == 0xed)
            high = 0x9f; /* surrogates */
    } else if (lead >= 0xf0 && lead <= 0xf4) {
        length = 4;
        if (lead == 0xf0)
            low = 0x90;
        else if (lead == 0xf4)
            high = 0x8f; /* beyond U+10FFFF */
    } else {
        return 0;
    }
    if (length > n || p[1] < low || p[1] > high)
        return 0;
    for (size_t i = 2; i < length; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return length;
}

bool tk_is_utf8(const uint8_t *p, size_t n)
{
    while (n > 0) {
        uint64_t word;
        if (n >= sizeof word) {
            memcpy(&word, p, sizeof word);
            if ((word & UINT64_C(0x8080808080808080)) == 0) {
                p += sizeof word;
                n -= sizeof word;
                continue;
            }
        }
        size_t step = tk_utf8_sequence(p, n);
        if (step == 0)
            return false;
        p += step;
        n -= step;
    }
    return true;
}
