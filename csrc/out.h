/* What the table tells its caller, as a run of texts and a run of numbers in `table.out`. */
#ifndef TK_OUT_H
#define TK_OUT_H

#include "table.h"

enum { TK_EVENT_STARTED = 0, TK_EVENT_DIED, TK_EVENT_REMOVED, TK_EVENT_CHANGED };

/* The pods with something to tell - with `only`, that pod if it has. Per pod: its uid and, for each event, an
 * id; the number of its events and, for each, its type. */
tk_code tk_tell_changes(tk_table *t, const tk_text *only);

/* The pod as it is now, nothing when it is not there. Texts: name, namespace, then the entries'. Numbers:
 * created_at, number of containers, number of sandboxes, then the entries'. A container has the texts id,
 * sandbox id, name, image, image_ref, image_id, hash and the numbers state, created_at; a sandbox the text id
 * and the numbers state, created_at, attempt. */
tk_code tk_tell_pod(tk_table *t, tk_text uid);

/* The uids of the pods that are there, or of those with a running container or sandbox. */
tk_code tk_tell_pods(tk_table *t, bool running);

#endif
