#include "text/writer.h"

#include <stdalign.h>
#include <stdlib.h>

bool nib_grow(void **items, size_t *capacity, size_t count, size_t item_size)
{
    if (count < *capacity)
        return true;
    size_t wanted = *capacity ? *capacity * 2 : 16;
    if (wanted > SIZE_MAX / 2 / item_size)
        return false;
    void *grown = realloc(*items, wanted * item_size);
    if (!grown)
        return false;
    *items = grown;
    *capacity = wanted;
    return true;
}

// The newest block comes first; only it has room left.
struct nib_arena {
    struct nib_arena *next;
    size_t used, capacity;
    alignas(max_align_t) char bytes[];
};

enum { FIRST_BLOCK = 1024, LARGEST_BLOCK = 1 << 20 };

static struct nib_arena *add_block(struct nib_arena *newest, size_t size)
{
    size_t capacity = FIRST_BLOCK;
    if (newest)
        capacity = newest->capacity < LARGEST_BLOCK ? newest->capacity * 2 : LARGEST_BLOCK;
    if (capacity < size)
        capacity = size;
    struct nib_arena *block = malloc(sizeof *block + capacity);
    if (block)
        *block = (struct nib_arena){.next = newest, .capacity = capacity};
    return block;
}

void *nib_arena_alloc(struct nib_arena **arena, size_t size)
{
    if (size > SIZE_MAX / 2)
        return NULL;
    size_t unit = alignof(max_align_t);
    size_t rounded = (size + unit - 1) / unit * unit;
    if (!*arena || (*arena)->capacity - (*arena)->used < rounded) {
        struct nib_arena *block = add_block(*arena, rounded);
        if (!block)
            return NULL;
        *arena = block;
    }
    void *room = (*arena)->bytes + (*arena)->used;
    (*arena)->used += rounded;
    return room;
}

void *nib_arena_copy(struct nib_arena **arena, const void *bytes, size_t size)
{
    static char nothing;
    if (size == 0)
        return &nothing;
    void *copy = nib_arena_alloc(arena, size);
    if (copy)
        memcpy(copy, bytes, size);
    return copy;
}

void nib_arena_free(struct nib_arena *arena)
{
    while (arena) {
        struct nib_arena *next = arena->next;
        free(arena);
        arena = next;
    }
}
