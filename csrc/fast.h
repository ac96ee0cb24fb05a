/* Reading entries at the speed of memory: the shape every runtime really sends.
 *
 * Serialisers write fields in ascending order, each at most once, and map entries as key and value. That shape
 * is read here without general decoding; anything else - also any fault - is left to tk_read_entry, which
 * decides. What is accepted here it accepts too, with the same result (tests and a fuzz target compare them).
 *
 * One thing is not looked at here: whether strings are UTF-8. That is shown for many entries at once: outside
 * strings only tags and varints have bytes from 0x80 up, and those are counted while reading; when a stretch
 * of the list has no more of them than that, all its strings are ASCII. */
#ifndef TK_FAST_H
#define TK_FAST_H

#include "entry.h"

/* Counts the bytes from 0x80 up. */
typedef uint64_t tk_count_high(const uint8_t *p, size_t n);

/* The quickest one this processor can run. */
tk_count_high *tk_best_count_high(void);

/* An entry needs this many readable bytes behind it to be read here. */
#define TK_FAST_SLACK 32

/* Reads the entry at *at, its tag and length first, if it ends at least TK_FAST_SLACK bytes before `end`; moves
 * *at behind it and adds its bytes from 0x80 up that are in no string to *high. Otherwise returns false and
 * leaves both: ask the exact reader. */
bool tk_fast_entry(const uint8_t **at, const uint8_t *end, tk_kind kind, tk_entry *entry, uint64_t *high);

#endif
