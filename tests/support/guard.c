#include "support/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

struct test_guarded test_guarded_alloc(size_t bytes, enum test_guard_side side)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (bytes + page - 1) / page * page;
    char *map = mmap(NULL, inside + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED || mprotect(map + page, inside, PROT_READ | PROT_WRITE) != 0) {
        perror("test_guarded_alloc");
        exit(1);
    }
    char *data = map + page + (side == TEST_GUARD_BEHIND ? inside - bytes : 0);
    return (struct test_guarded){data, map, inside + 2 * page};
}

void test_guarded_free(struct test_guarded *guarded)
{
    munmap(guarded->map, guarded->map_bytes);
    *guarded = (struct test_guarded){0};
}
