/* What is told of calls that are entered (_entry.c): an extension hands it over in a PyCapsule named "voirkit.entry.hooks", for ever.
 *
 * Under the GIL, on the program's thread, in the middle of its call: neither may raise, nor call what the program could notice. What is done
 * inside of them is not told. args, nargs and kwnames are as in vectorcall: the values of keywords follow the positional ones, self comes
 * first; of Python functions on 3.11 as near to it as can be known, and nothing at the end (args NULL).
 */
#ifndef VOIRKIT_ENTRY_H
#define VOIRKIT_ENTRY_H

#include <Python.h>
#include <stdint.h>

#define VOIRKIT_ENTRY_HOOKS "voirkit.entry.hooks"

typedef struct {
    /* Before a call. 0: its end is not to be told. state: four words for this call alone. */
    int (*begin)(int64_t number, PyObject *callable, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, void *state[4]);
    /* After it. value NULL: it raised, and the exception is set, to be left as it is. */
    void (*end)(int64_t number, PyObject *value, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames, void *state[4]);
} voirkit_entry_hooks;

#endif
