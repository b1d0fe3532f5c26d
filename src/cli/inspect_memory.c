// What a model would occupy, and what its cache grows by, as the engine plans it.
#include <stdio.h>

#include "cli/inspect.h"
#include "cli/units.h"

static json_t *bytes_json(uint64_t bytes)
{
    return json_integer((json_int_t)bytes);
}

// Elements that one token leaves in a group of layers are its row's bytes over those of one.
static json_t *group_json(const struct nib_memory_plan *plan, const struct nib_cache_group *group)
{
    int64_t most = group->most_tokens < plan->context ? group->most_tokens : plan->context;
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "window", (json_int_t)group->window, "layers",
                     (json_int_t)group->layers, "elements_per_token",
                     (json_int_t)(group->row_bytes / plan->cache_element_bytes), "element_bytes",
                     (json_int_t)plan->cache_element_bytes, "bytes_per_token", (json_int_t)group->row_bytes,
                     "most_tokens", (json_int_t)most, "sequence_bytes",
                     (json_int_t)((uint64_t)most * group->row_bytes));
}

void inspect_add_plan(const struct nib_memory_plan *plan, json_t *report)
{
    json_t *memory = json_object(), *groups = json_array();
    uint64_t kept = 0, all = 0;
    json_object_set_new(memory, "weights_bytes", bytes_json(plan->weights_bytes));
    json_object_set_new(memory, "widened_bytes", bytes_json(plan->widened_bytes));
    json_object_set_new(memory, "cache_bytes", bytes_json(plan->cache_bytes));
    json_object_set_new(memory, "buffer_bytes", bytes_json(plan->buffer_bytes));
    json_object_set_new(memory, "scratch_bytes", bytes_json(plan->scratch_bytes));
    json_object_set_new(memory, "total_bytes", bytes_json(plan->total_bytes));
    json_object_set_new(memory, "available_bytes", bytes_json(plan->available_bytes));
    json_object_set_new(memory, "context", json_integer(plan->context));
    json_object_set_new(memory, "sequences", json_integer(plan->max_sequences));
    for (int g = 0; g < plan->n_cache_groups; g++) {
        json_t *group = group_json(plan, &plan->cache_groups[g]);
        kept += (uint64_t)json_integer_value(json_object_get(group, "sequence_bytes"));
        all += plan->cache_groups[g].row_bytes * (uint64_t)plan->context;
        json_array_append_new(groups, group);
    }
    json_object_set_new(report, "memory", memory);
    json_object_set_new(report, "cache_bytes_per_token", bytes_json(plan->cache_row_bytes));
    json_object_set_new(report, "cache_groups", groups);
    json_object_set_new(report, "cache_sequence_bytes", bytes_json(kept));
    json_object_set_new(report, "cache_without_windows_bytes", bytes_json(all));
}

static long long number(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static struct size_text size(const json_t *object, const char *key)
{
    return size_text((uint64_t)number(object, key));
}

// "61 layers x 576 elements x 2 bytes" where that is what it is.
static void print_group(const json_t *group)
{
    long long layers = number(group, "layers"), elements = number(group, "elements_per_token");
    printf("  %lld layer%s", layers, layers == 1 ? "" : "s");
    if (layers && elements % layers == 0)
        printf(" x %lld elements x %lld bytes", elements / layers, number(group, "element_bytes"));
    printf(": %lld bytes a token", number(group, "bytes_per_token"));
    if (number(group, "window"))
        printf(", of the last %lld (%lld at most, whole pages and a step): %s", number(group, "window"),
               number(group, "most_tokens"), size(group, "sequence_bytes").text);
    putchar('\n');
}

void inspect_print_memory(const json_t *report)
{
    const json_t *memory = json_object_get(report, "memory"), *groups = json_object_get(report, "cache_groups");
    size_t i;
    json_t *group;
    if (!memory)
        return;
    printf(
        "\nmemory for a context of %lld, shared by up to %lld sequences: %s of %s available: weights %s (mapped), "
        "KV cache %s, buffers %s, scratch %s\n",
        number(memory, "context"), number(memory, "sequences"), size(memory, "total_bytes").text,
        size(memory, "available_bytes").text,
        size_text((uint64_t)(number(memory, "weights_bytes") + number(memory, "widened_bytes"))).text,
        size(memory, "cache_bytes").text, size(memory, "buffer_bytes").text, size(memory, "scratch_bytes").text);
    printf("\nKV cache of a sequence that fills the context: %s\n", size(report, "cache_sequence_bytes").text);
    json_array_foreach(groups, i, group) print_group(group);
    long long kept = number(report, "cache_sequence_bytes"), all = number(report, "cache_without_windows_bytes");
    if (all > kept && kept > 0)
        printf("  were every token kept in every layer, it would be %.1f times as much\n",
               (double)all / (double)kept);
}
