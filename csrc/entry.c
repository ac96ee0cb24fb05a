#include "entry.h"

#include <string.h>

static bool equals(tk_text text, const char *literal, size_t size)
{
    return text.size == size && memcmp(text.data, literal, size) == 0;
}

#define EQUALS(text, literal) equals(text, literal, sizeof(literal) - 1)

/* Reads one field of a message `into` what the message is read into. */
typedef tk_code read_field(tk_reader *r, tk_tag tag, void *into);

/* Reads a message that is a field of another one: its fault is the whole's fault. */
static tk_code read_message(tk_reader *whole, read_field *field, void *into)
{
    tk_text text;
    tk_code code = tk_read_bytes(whole, &text);
    if (code)
        return code;
    tk_reader r = {.start = whole->start, .pos = text.data, .end = text.data + text.size};
    while (code == TK_OK && r.pos < r.end) {
        tk_tag tag;
        if ((code = tk_read_tag(&r, &tag)) == TK_OK)
            code = field(&r, tag, into);
    }
    if (code)
        whole->fault = r.fault;
    return code;
}

typedef struct {
    tk_text key;
    tk_text value;
} map_entry;

static tk_code read_map_field(tk_reader *r, tk_tag tag, void *into)
{
    map_entry *e = into;
    if (tag.type == TK_LENGTH && tag.number == 1)
        return tk_read_text(r, &e->key);
    if (tag.type == TK_LENGTH && tag.number == 2)
        return tk_read_text(r, &e->value);
    return tk_skip(r, tag);
}

static tk_code read_map_entry(tk_reader *r, map_entry *e)
{
    *e = (map_entry){.key = {.data = r->pos}, .value = {.data = r->pos}};
    return read_message(r, read_map_field, e);
}

static tk_code read_container_metadata_field(tk_reader *r, tk_tag tag, void *into)
{
    tk_details *d = into;
    if (tag.type == TK_LENGTH && tag.number == 1)
        return tk_read_text(r, &d->name);
    return tk_skip(r, tag);
}

/* ImageSpec: image, annotations, user_specified_image, runtime_handler, image_ref. */
static tk_code read_image_field(tk_reader *r, tk_tag tag, void *into)
{
    tk_details *d = into;
    tk_text ignored;
    map_entry annotation;
    if (tag.type != TK_LENGTH)
        return tk_skip(r, tag);
    if (tag.number == 1)
        return tk_read_text(r, &d->image);
    if (tag.number == 2)
        return read_map_entry(r, &annotation);
    if (tag.number >= 18 && tag.number <= 20)
        return tk_read_text(r, &ignored);
    return tk_skip(r, tag);
}

static tk_code read_label(tk_reader *r, tk_entry *e, tk_details *d)
{
    map_entry label;
    tk_code code = read_map_entry(r, &label);
    if (code)
        return code;
    if (EQUALS(label.key, "io.kubernetes.pod.uid"))
        e->uid = label.value;
    else if (EQUALS(label.key, "io.kubernetes.pod.name"))
        d->pod_name = label.value;
    else if (EQUALS(label.key, "io.kubernetes.pod.namespace"))
        d->pod_namespace = label.value;
    return TK_OK;
}

static tk_code read_annotation(tk_reader *r, tk_details *d)
{
    map_entry annotation;
    tk_code code = read_map_entry(r, &annotation);
    if (code == TK_OK && EQUALS(annotation.key, "io.kubernetes.container.hash"))
        d->hash = annotation.value;
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
        return read_message(r, read_container_metadata_field, d);
    case 4:
        e->has_image = true;
        return read_message(r, read_image_field, d);
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

typedef struct {
    tk_entry *entry;
    tk_details *details;
} sandbox;

static tk_code read_sandbox_metadata_field(tk_reader *r, tk_tag tag, void *into)
{
    const sandbox *s = into;
    uint64_t attempt;
    if (tag.type == TK_LENGTH && tag.number == 1)
        return tk_read_text(r, &s->details->pod_name);
    if (tag.type == TK_LENGTH && tag.number == 2)
        return tk_read_text(r, &s->entry->uid);
    if (tag.type == TK_LENGTH && tag.number == 3)
        return tk_read_text(r, &s->details->pod_namespace);
    if (tag.type != TK_VARINT || tag.number != 4)
        return tk_skip(r, tag);
    tk_code code = tk_read_varint(r, &attempt);
    if (code == TK_OK)
        s->entry->attempt = (uint32_t)attempt;
    return code;
}

static tk_code read_sandbox_field(tk_reader *r, tk_tag tag, tk_entry *e, tk_details *d)
{
    tk_text ignored;
    map_entry each;
    if (tag.type == TK_VARINT && (tag.number == 3 || tag.number == 4))
        return read_varint_field(r, tag.number, e, 3);
    if (tag.type != TK_LENGTH)
        return tk_skip(r, tag);
    switch (tag.number) {
    case 1:
        return tk_read_text(r, &e->id);
    case 2:
        e->has_metadata = true;
        return read_message(r, read_sandbox_metadata_field, &(sandbox){.entry = e, .details = d});
    case 5:
    case 6:
        return read_map_entry(r, &each);
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
