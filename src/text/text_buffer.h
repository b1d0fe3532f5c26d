// A growing run of bytes and an arena for bytes that must not move. Both remember a failed allocation (`failed`), so
// that a writer checks once, at its end.
#ifndef NIB_TEXT_BUFFER_H
#define NIB_TEXT_BUFFER_H

#include "nibble/chat.h"

struct nib_buffer {
    char *bytes; /* [size] */
    size_t size, capacity;
    bool failed;
};

void nib_buffer_put(struct nib_buffer *buffer, const char *bytes /* [size] */, size_t size);
void nib_buffer_free(struct nib_buffer *buffer);

static inline void nib_buffer_puts(struct nib_buffer *buffer, const char *string)
{
    nib_buffer_put(buffer, string, strlen(string));
}

static inline void nib_buffer_put_text(struct nib_buffer *buffer, struct nib_text text)
{
    nib_buffer_put(buffer, text.bytes, text.size);
}

static inline struct nib_text nib_buffer_text(const struct nib_buffer *buffer)
{
    return (struct nib_text){buffer->bytes, buffer->size};
}

// Grows an array of `item_size` bytes an item to hold `count + 1`; false when memory is out.
bool nib_grow(void **items, size_t *capacity, size_t count, size_t item_size);

struct nib_arena;

// Memory aligned for any type, released with the arena; *arena is created when NULL. NULL when memory is out.
void *nib_arena_alloc(struct nib_arena **arena, size_t size);

// A copy of `size` bytes; of 0 bytes it is any non-NULL pointer.
void *nib_arena_copy(struct nib_arena **arena, const void *bytes, size_t size);

void nib_arena_free(struct nib_arena *arena);

#endif
