#include "entry.h"

#include <string.h>

static bool equals(tk_text text, const char *literal, size_t size)
{
    return text.size == size && memcmp(text.data, literal, size) == 0;
}

#define EQUALS(text, literal) equals(text, literal, sizeof(literal) - 1)

static tk_reader part(const tk_reader *r, tk_text text)
{
    return (tk_reader){.start = r->start, .pos = text.data, .end = text.data + text.size};
}

/* Ends reading a part: its fault is the whole's fault. */
static tk_code leave(tk_reader *whole, const tk_reader *inner, tk_code code)
{
    if (code)
        whole->fault = inner->fault;
    return code;
}

static tk_code read_map_entry(tk_reader *r, tk_text *key, tk_text *value)
{
    tk_text text;
    tk_code code = tk_read_bytes(r, &text);
    if (code)
        return code;
    tk_reader in = part(r, text);
    *key = *value = (tk_text){.data = text.data, .size = 0};
    while (code == TK_OK && in.pos < in.end) {
        tk_tag tag;
        if ((code = tk_read_tag(&in, &tag)) != TK_OK)
            break;
        if (tag.type == TK_LENGTH && tag.number == 1)
            code = tk_read_text(&in, key);
        else if (tag.type == TK_LENGTH && tag.number == 2)
            code = tk_read_text(&in, value);
        else
            code = tk_skip(&in, tag);
    }
    return leave(r, &in, code);
}

static tk_code read_container_metadata(tk_reader *r, tk_details *d)
{
    tk_text text;
    tk_code code = tk_read_bytes(r, &text);
    if (code)
        return code;
    tk_reader in = part(r, text);
    while (code == TK_OK && in.pos < in.end) {
        tk_tag tag;
        if ((code = tk_read_tag(&in, &tag)) != TK_OK)
            break;
        if (tag.type == TK_LENGTH && tag.number == 1)
            code = tk_read_text(&in, &d->name);
        else
            code = tk_skip(&in, tag);
    }
    return leave(r, &in, code);
}

/* ImageSpec: image, annotations, user_specified_image, runtime_handler, image_ref. */
static tk_code read_image(tk_reader *r, tk_details *d)
{
    tk_text text, ignored, value;
    tk_code code = tk_read_bytes(r, &text);
    if (code)
        return code;
    tk_reader in = part(r, text);
    while (code == TK_OK && in.pos < in.end) {
        tk_tag tag;
        if ((code = tk_read_tag(&in, &tag)) != TK_OK)
            break;
        if (tag.type != TK_LENGTH)
            code = tk_skip(&in, tag);
        else if (tag.number == 1)
            code = tk_read_text(&in, &d->image);
        else if (tag.number == 2)
            code = read_map_entry(&in, &ignored, &value);
        else if (tag.number >= 18 && tag.number <= 20)
            code = tk_read_text(&in, &ignored);
        else
            code = tk_skip(&in, tag);
    }
    return leave(r, &in, code);
}

static tk_code read_label(tk_reader *r, tk_entry *e, tk_details *d)
{
    tk_text key, value;
    tk_code code = read_map_entry(r, &key, &value);
    if (code)
        return code;
    if (EQUALS(key, "io.kubernetes.pod.uid"))
        e->uid = value;
    else if (EQUALS(key, "io.kubernetes.pod.name"))
        d->pod_name = value;
    else if (EQUALS(key, "io.kubernetes.pod.namespace"))
        d->pod_namespace = value;
    return TK_OK;
}

static tk_code read_annotation(tk_reader *r, tk_details *d)
{
    tk_text key, value;
    tk_code code = read_map_entry(r, &key, &value);
    if (code == TK_OK && EQUALS(key, "io.kubernetes.container.hash"))
        d->hash = value;
    return code;
}

static tk_code read_varint_field(tk_reader *r, uint32_t field, tk_entry *e, uint32_t state_field)
{
    uint64_t v;
    tk_code code = tk_read_varint(r, &v);
    if (code)
        return code;
    if (field == state_field)
        e->state = tk_state_of((tk_kind)e->kind, (uint32_t)v);
    else
        e->created_at = (int64_t)v;
    return TK_OK;
}

static tk_code read_container_field(tk_reader *r, tk_tag tag, tk_entry *e, tk_details *d)
{
    if (tag.type == TK_VARINT && (tag.number == 6 || tag.number == 7))
        return read_varint_field(r, tag.number, e, 6);
    if (tag.type != TK_LENGTH)
        return tk_skip(r, tag);
    switch (tag.number) {
    case 1:
        return tk_read_text(r, &e->id);
    case 2:
        return tk_read_text(r, &d->sandbox_id);
    case 3:
        e->has_metadata = true;
        return read_container_metadata(r, d);
    case 4:
        e->has_image = true;
        return read_image(r, d);
    case 5:
        return tk_read_text(r, &d->image_ref);
    case 8:
        return read_label(r, e, d);
    case 9:
        return read_annotation(r, d);
    case 10:
        return tk_read_text(r, &d->image_id);
    default:
        return tk_skip(r, tag);
    }
}

static tk_code read_sandbox_metadata(tk_reader *r, tk_entry *e, tk_details *d)
{
    tk_text text;
    tk_code code = tk_read_bytes(r, &text);
    if (code)
        return code;
    tk_reader in = part(r, text);
    while (code == TK_OK && in.pos < in.end) {
        tk_tag tag;
        uint64_t attempt;
        if ((code = tk_read_tag(&in, &tag)) != TK_OK)
            break;
        if (tag.type == TK_LENGTH && tag.number == 1)
            code = tk_read_text(&in, &d->pod_name);
        else if (tag.type == TK_LENGTH && tag.number == 2)
            code = tk_read_text(&in, &e->uid);
        else if (tag.type == TK_LENGTH && tag.number == 3)
            code = tk_read_text(&in, &d->pod_namespace);
        else if (tag.type != TK_VARINT || tag.number != 4)
            code = tk_skip(&in, tag);
        else if ((code = tk_read_varint(&in, &attempt)) == TK_OK)
            e->attempt = (uint32_t)attempt;
    }
    return leave(r, &in, code);
}

static tk_code read_sandbox_field(tk_reader *r, tk_tag tag, tk_entry *e, tk_details *d)
{
    tk_text ignored, value;
    if (tag.type == TK_VARINT && (tag.number == 3 || tag.number == 4))
        return read_varint_field(r, tag.number, e, 3);
    if (tag.type != TK_LENGTH)
        return tk_skip(r, tag);
    switch (tag.number) {
    case 1:
        return tk_read_text(r, &e->id);
    case 2:
        e->has_metadata = true;
        return read_sandbox_metadata(r, e, d);
    case 5:
    case 6:
        return read_map_entry(r, &ignored, &value);
    case 7:
        return tk_read_text(r, &ignored);
    default:
        return tk_skip(r, tag);
    }
}

tk_code tk_read_entry(const uint8_t *start, tk_text item, tk_kind kind, tk_entry *entry, tk_details *details,
                      size_t *fault)
{
    tk_reader r = {.start = start, .pos = item.data, .end = item.data + item.size};
    tk_text none = {.data = item.data, .size = 0};
    tk_details unwanted;
    tk_details *d = details != NULL ? details : &unwanted;
    *d = (tk_details){none, none, none, none, none, none, none, none};
    *entry = (tk_entry){.id = none, .uid = none, .kind = (uint8_t)kind, .item = item};
    entry->state = tk_state_of(kind, 0);
    while (r.pos < r.end) {
        tk_tag tag;
        tk_code code = tk_read_tag(&r, &tag);
        if (code == TK_OK)
            code = kind == TK_CONTAINER ? read_container_field(&r, tag, entry, d)
                                        : read_sandbox_field(&r, tag, entry, d);
        if (code) {
            *fault = r.fault;
            return code;
        }
    }
    return TK_OK;
}
