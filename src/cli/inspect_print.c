#include "cli/inspect.h"

#include <stdio.h>
#include <string.h>

#include "cli/units.h"

static const char *text(const json_t *object, const char *key)
{
    const char *value = json_string_value(json_object_get(object, key));
    return value ? value : "";
}

static long long number(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static struct size_text size(const json_t *object, const char *key)
{
    return size_text((uint64_t)number(object, key));
}

static void print_head(const json_t *report)
{
    const char *family = text(report, "model_type");
    printf("%s: %s%s%s, %lld tensors, %s in %zu file%s\n", text(report, "path"),
           *family ? family : "no config.json", *text(report, "architecture") ? " " : "",
           text(report, "architecture"), number(report, "tensors"), size(report, "bytes").text,
           json_array_size(json_object_get(report, "files")),
           json_array_size(json_object_get(report, "files")) == 1 ? "" : "s");
    if (number(report, "copied_bytes"))
        printf("  %s lie unaligned in the files and are copied\n", size(report, "copied_bytes").text);
}

static void print_groups(const json_t *groups)
{
    size_t i, j;
    json_t *group, *extent;
    printf("\ntensors (* stands for a number)\n");
    json_array_foreach(groups, i, group)
    {
        char shape[128] = "[";
        json_array_foreach(json_object_get(group, "shape"), j, extent)
        {
            size_t used = strlen(shape);
            snprintf(shape + used, sizeof shape - used, "%s%lld", j ? ", " : "",
                     (long long)json_integer_value(extent));
        }
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), "]");
        printf("  %5lld x %-7s %-18s %10s  %s\n", number(group, "count"), text(group, "dtype"), shape,
               size(group, "bytes").text, text(group, "name"));
    }
}

// The same but for the prefix.
static bool same_experts(json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    json_object_foreach(a, key, value)
    {
        if (strcmp(key, "prefix") != 0 && !json_equal(value, json_object_get(b, key)))
            return false;
    }
    return json_object_size(a) == json_object_size(b);
}

// Runs of equal layers in one line.
static void print_experts(const json_t *list)
{
    size_t count = json_array_size(list);
    if (count)
        printf("\nexperts\n");
    for (size_t first = 0, end; first < count; first = end) {
        json_t *experts = json_array_get(list, first);
        for (end = first + 1; end < count && same_experts(experts, json_array_get(list, end));)
            end++;
        printf("  %s", text(experts, "prefix"));
        if (end > first + 1)
            printf(" … %s (%zu layers, each:)", text(json_array_get(list, end - 1), "prefix"), end - first);
        if (json_object_get(experts, "error")) {
            printf("\n    %s\n", text(experts, "error"));
            continue;
        }
        printf("\n    %s, %lld experts of %lld x %lld, gate and up rows %s%s, %s", text(experts, "layout"),
               number(experts, "experts"), number(experts, "hidden"), number(experts, "intermediate"),
               text(experts, "gate_up_rows"), json_is_true(json_object_get(experts, "biases")) ? ", biases" : "",
               size(experts, "bytes").text);
        if (json_object_get(experts, "scales"))
            printf(", scales: %s", text(experts, "scales"));
        putchar('\n');
    }
}

static bool same_layer(const json_t *a, const json_t *b)
{
    static const char *const keys[] = {"attention",  "expert_layout", "moe_kernel",
                                       "moe_reason", "linear_kernel", "linear_reason"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(text(a, keys[i]), text(b, keys[i])) != 0)
            return false;
    return number(a, "expert_bytes") == number(b, "expert_bytes") &&
           number(a, "dense_bytes") == number(b, "dense_bytes");
}

// Each kind of layer once, with the numbers of the layers that are so.
static void print_layers(const json_t *layers)
{
    size_t i, j;
    json_t *layer, *other;
    printf("\nlayers\n");
    json_array_foreach(layers, i, layer)
    {
        bool seen = false;
        for (j = 0; j < i; j++)
            seen |= same_layer(json_array_get(layers, j), layer);
        if (seen)
            continue;
        printf(" ");
        json_array_foreach(layers, j, other) if (same_layer(layer, other)) printf(" %zu", j);
        printf(": %s\n    dense %s, %s: %s\n", text(layer, "attention"), size(layer, "dense_bytes").text,
               text(layer, "linear_kernel"), text(layer, "linear_reason"));
        if (*text(layer, "expert_layout"))
            printf("    experts %s as %s, %s: %s\n", size(layer, "expert_bytes").text,
                   text(layer, "expert_layout"), text(layer, "moe_kernel"), text(layer, "moe_reason"));
    }
}

static void print_running(const json_t *report)
{
    const json_t *unused = json_object_get(report, "unused");
    size_t i;
    json_t *name;
    inspect_print_memory(report);
    if (!json_is_true(json_object_get(report, "runs"))) {
        printf("\nnibble cannot run it: %s\n", text(report, "runs_not_because"));
        return;
    }
    print_layers(json_object_get(report, "layers"));
    printf("\none decoded token reads %s of weights\n", size(report, "weight_bytes_per_token").text);
    json_array_foreach(unused, i, name) printf("unused tensor: %s\n", json_string_value(name));
}

void inspect_print(const json_t *report)
{
    print_head(report);
    print_groups(json_object_get(report, "groups"));
    if (json_object_get(report, "experts_error"))
        printf("\nexperts: %s\n", text(report, "experts_error"));
    print_experts(json_object_get(report, "experts"));
    print_running(report);
}
