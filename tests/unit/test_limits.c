// Control-group limits, read from made-up roots.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "base/limits.h"
#include "support/paths.h"

// Writes `text` to root/relative, making folders on the way.
static void put(const char *root, const char *relative, const char *text)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", root, relative);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(path, 0777);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int cpu_limit(const char *root, int processors)
{
    char proc[4096], cgroup[4096];
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(cgroup, sizeof cgroup, "%s/cgroup", root);
    return nib_cgroup_cpu_limit(proc, cgroup, processors);
}

static uint64_t memory(const char *root)
{
    char proc[4096], cgroup[4096];
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(cgroup, sizeof cgroup, "%s/cgroup", root);
    return nib_memory_available_at(proc, cgroup);
}

static void no_groups_leave_the_processors(void **state)
{
    (void)state;
    const char *root = test_scratch("limits");
    assert_int_equal(cpu_limit(root, 7), 7);
}

static void version_2_quota_is_rounded_up(void **state)
{
    (void)state;
    const char *root = test_scratch("limits");
    put(root, "proc/self/cgroup", "0::/app/worker\n");
    put(root, "cgroup/app/worker/cpu.max", "max 100000\n");
    assert_int_equal(cpu_limit(root, 16), 16);
    put(root, "cgroup/app/cpu.max", "250000 100000\n"); // the parent's limit binds its children
    assert_int_equal(cpu_limit(root, 16), 3);
    assert_int_equal(cpu_limit(root, 2), 2);
    put(root, "cgroup/app/worker/cpu.max", "10000 100000\n");
    assert_int_equal(cpu_limit(root, 16), 1);
}

static void version_1_quota_counts(void **state)
{
    (void)state;
    const char *root = test_scratch("limits");
    put(root, "proc/self/cgroup", "4:cpuacct,cpu:/job\n3:memory:/job\n");
    put(root, "cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
    put(root, "cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpu_limit(root, 8), 8);
    put(root, "cgroup/cpu/job/cpu.cfs_quota_us", "400000\n");
    assert_int_equal(cpu_limit(root, 8), 4);
}

static void the_smallest_memory_limit_wins(void **state)
{
    (void)state;
    const char *root = test_scratch("limits");
    put(root, "proc/meminfo", "MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable:    1000 kB\n");
    put(root, "proc/self/cgroup", "0::/a/b\n");
    assert_int_equal(memory(root), 1000 * 1024);
    put(root, "cgroup/a/memory.max", "600000\n");
    put(root, "cgroup/a/memory.current", "200000\n");
    assert_int_equal(memory(root), 400000);
    put(root, "cgroup/a/memory.stat", "anon 5\ninactive_file 50000\n");
    assert_int_equal(memory(root), 450000);
    put(root, "cgroup/a/b/memory.max", "100\n");
    put(root, "cgroup/a/b/memory.current", "200\n");
    assert_int_equal(memory(root), 0);
}

static void this_process_has_sane_numbers(void **state)
{
    (void)state;
    assert_true(nib_thread_limit() >= 1);
    assert_true(nib_memory_available() > 1 << 20);
    assert_true(nib_memory_resident() > 1 << 16);
    uint64_t before = nib_memory_anonymous();
    char *touched = malloc(8 << 20);
    assert_non_null(touched);
    memset(touched, 1, 8 << 20);
    assert_true(nib_memory_anonymous() >= before + (7 << 20));
    assert_true(nib_memory_anonymous() <= nib_memory_resident());
    free(touched);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_groups_leave_the_processors), cmocka_unit_test(version_2_quota_is_rounded_up),
        cmocka_unit_test(version_1_quota_counts),         cmocka_unit_test(the_smallest_memory_limit_wins),
        cmocka_unit_test(this_process_has_sane_numbers),
    };
    return cmocka_run_group_tests_name("limits", tests, NULL, NULL);
}
