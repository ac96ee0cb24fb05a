/* Reading entries at the speed of memory: the shape every runtime really sends.
 *
 * Serialisers write fields in ascending order, each at most once, and map entries as key and value. That shape
 * is read here without general decoding; anything else - also any fault - is left to tk_read_entry, which
 * decides. What is accepted here it accepts too, with the same result (tests and a fuzz target compare them).
 *
 * That all strings are UTF-8 is shown for the whole entry at once: outside strings only varints have bytes
 * from 0x80 up, and those are counted while reading; when the entry has no more of them than that, all strings
 * are ASCII. */
#ifndef TK_FAST_H
#define TK_FAST_H

#include "entry.h"

/* Counts the bytes from 0x80 up. */
typedef uint64_t tk_count_high(const uint8_t *p, size_t n);

/* The quickest one this processor can run. */
tk_count_high *tk_best_count_high(void);

/* An entry needs this many readable bytes behind it to be read here. */
#define TK_FAST_SLACK 16

/* Reads the entry, or returns false: ask tk_read_entry. */
bool tk_fast_entry(tk_count_high *count_high, tk_text item, tk_kind kind, tk_entry *entry);

#endif
