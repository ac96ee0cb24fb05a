/* The kubelet's hashes. Twin: trio_kubelet/native/pure_hashes.py. */
#ifndef TK_HASH_H
#define TK_HASH_H

#include <stddef.h>
#include <stdint.h>

uint32_t tk_fnv1a32(const uint8_t *data, size_t size);

/* Writes 16 bytes, big-endian. */
void tk_fnv1a128(const uint8_t *data, size_t size, uint8_t *out);

/* FNV-1a-32 over Go's dump, `([]uint8)[123 34 … 125]`, of the JSON text {"image":…,"name":…}; neither the
 * dump nor the JSON text is built. The texts need not be UTF-8. */
uint32_t tk_container_hash(const uint8_t *name, size_t name_size, const uint8_t *image, size_t image_size);

#ifdef TK_CHECKED
/* Reads every byte once, in words of eight: the floor any scanner stands on, for benchmarks. */
uint64_t tk_read_words(const uint8_t *data, size_t size);
#endif

#endif
