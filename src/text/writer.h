// Growing bytes, and an arena for bytes that must not move. A writer remembers that memory ran out (`failed`), so that
// whoever writes asks once, at the end.
#ifndef NIB_TEXT_WRITER_H
#define NIB_TEXT_WRITER_H

#include "nibble/chat.h"
#include "nibble/tokenizer.h"

struct nib_writer {
    struct nib_bytes buffer; // freed by its owner
    bool failed;
};

static inline void nib_write(struct nib_writer *writer, const char *bytes /* [size] */, size_t size)
{
    if (size && !writer->failed)
        writer->failed = nib_bytes_append(&writer->buffer, bytes, size, NULL) != NIB_OK;
}

static inline void nib_write_string(struct nib_writer *writer, const char *string)
{
    nib_write(writer, string, strlen(string));
}

static inline void nib_write_text(struct nib_writer *writer, struct nib_text text)
{
    nib_write(writer, text.bytes, text.size);
}

static inline struct nib_text nib_writer_text(const struct nib_writer *writer)
{
    return (struct nib_text){writer->buffer.data, writer->buffer.size};
}

static inline bool nib_is_space(char byte)
{
    return byte == ' ' || byte == '\n' || byte == '\r' || byte == '\t';
}

// Without the white space at both ends.
static inline struct nib_text nib_text_trimmed(struct nib_text text)
{
    for (; text.size && nib_is_space(*text.bytes); text.size--)
        text.bytes++;
    while (text.size && nib_is_space(text.bytes[text.size - 1]))
        text.size--;
    return text;
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
