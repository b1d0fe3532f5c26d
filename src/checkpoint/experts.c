#include "checkpoint/experts.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

const char *nib_expert_layout_name(enum nib_expert_layout layout)
{
    static const char *const names[NIB_EXPERTS_LAYOUT_COUNT] = {
        [NIB_EXPERTS_GPT_OSS] = "gpt-oss",
        [NIB_EXPERTS_GPT_OSS_ORIGINAL] = "gpt-oss original",
        [NIB_EXPERTS_FUSED] = "fused",
        [NIB_EXPERTS_QUARK] = "quark",
        [NIB_EXPERTS_COMPRESSED_TENSORS] = "compressed-tensors",
        [NIB_EXPERTS_DEEPSEEK] = "deepseek",
    };
    return (unsigned)layout < NIB_EXPERTS_LAYOUT_COUNT ? names[layout] : "unknown";
}

bool nib_name_join(char *text /* [NIB_NAME_CAPACITY] */, const char *prefix, const char *name)
{
    int length = snprintf(text, NIB_NAME_CAPACITY, "%s%s%s", prefix, *prefix ? "." : "", name);
    return length >= 0 && length < NIB_NAME_CAPACITY;
}

// ---- One layer's experts ----

// Neither fused nor numbered names that we know: what is there instead?
static nib_status fail_unknown(const struct nib_checkpoint *checkpoint, const char *prefix, struct nib_error *err)
{
    char text[NIB_NAME_CAPACITY], shape[200];
    if (nib_name_join(text, prefix, "")) {
        size_t at = nib_checkpoint_lower_bound(checkpoint, text);
        const struct nib_tensor *tensor = nib_checkpoint_at(checkpoint, at);
        if (*prefix && tensor && strncmp(tensor->name, text, strlen(text)) == 0)
            return nib_fail(err, NIB_ERR_UNSUPPORTED, "%s: %s: %s: not experts in a layout that is known here",
                            tensor->file, tensor->name, nib_tensor_describe(tensor, shape, sizeof shape));
    }
    return nib_fail(err, NIB_ERR_NOT_FOUND, "%s: no experts %s.*", checkpoint->path, prefix);
}

static nib_status check_sizes(const struct nib_experts *experts, struct nib_error *err)
{
    const struct nib_moe_weights *weights = &experts->weights;
    if (weights->hidden % NIB_MX_BLOCK == 0 && weights->intermediate % NIB_MX_BLOCK == 0)
        return NIB_OK;
    return nib_fail(err, NIB_ERR_FORMAT,
                    "%s: %s: hidden size %lld and intermediate size %lld are not multiples of 32",
                    experts->weight->file, experts->weight->name, (long long)weights->hidden,
                    (long long)weights->intermediate);
}

nib_status nib_checkpoint_experts(struct nib_checkpoint *checkpoint, const char *prefix, bool gate_up_interleaved,
                                  struct nib_experts *experts, struct nib_error *err)
{
    struct nib_experts made = {0};
    bool fused = false, separate = false;
    nib_status status = nib_experts_fused(checkpoint, prefix, gate_up_interleaved, &made, &fused, err);
    if (status != NIB_OK)
        return status;
    struct nib_experts numbered = {0};
    status = nib_experts_separate(checkpoint, prefix, &numbered, &separate, err);
    if (fused && separate)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: experts in two layouts, %s and numbered", checkpoint->path,
                        prefix, made.weight->name);
    if (status != NIB_OK)
        return status;
    if (!fused && !separate)
        return fail_unknown(checkpoint, prefix, err);
    if (separate)
        made = numbered;
    size_t bytes = strlen(prefix) + 1;
    char *copy = nib_checkpoint_allocate(checkpoint, bytes);
    if (!copy)
        return nib_fail_memory(err, bytes, "a name");
    memcpy(copy, prefix, bytes);
    made.prefix = copy;
    status = check_sizes(&made, err);
    if (status == NIB_OK)
        *experts = made;
    return status;
}

// ---- Which layers have experts ----

// The length of what comes before an expert's number or a fused tensor's own name; 0 when it is no routed expert's name.
static size_t prefix_length(const char *name)
{
    static const char folder[] = "experts.", original[] = ".mlp1_weight.blocks";
    for (const char *p = strstr(name, folder); p; p = strstr(p + 1, folder))
        if (p == name || p[-1] == '.') // not "shared_experts."
            return (size_t)(p - name) + sizeof folder - 2;
    size_t length = strlen(name), tail = sizeof original - 1;
    return length > tail && strcmp(name + length - tail, original) == 0 ? length - tail : 0;
}

// Runs of digits compare as numbers: layer 9 comes before layer 10.
static int compare_natural(const void *a, const void *b)
{
    const char *left = *(const char *const *)a, *right = *(const char *const *)b;
    while (*left && *right) {
        if (isdigit((unsigned char)*left) && isdigit((unsigned char)*right)) {
            size_t one = strspn(left, "0123456789"), other = strspn(right, "0123456789");
            int order = one != other ? (one < other ? -1 : 1) : strncmp(left, right, one);
            if (order)
                return order;
            left += one;
            right += other;
        } else if (*left != *right) {
            return (unsigned char)*left < (unsigned char)*right ? -1 : 1;
        } else {
            left++;
            right++;
        }
    }
    return *left ? 1 : *right ? -1 : 0;
}

// Names are sorted, so those with one prefix stand together and a look at the last one found is enough.
static size_t collect_prefixes(struct nib_checkpoint *checkpoint, const char **list)
{
    size_t count = 0;
    for (size_t i = 0; i < checkpoint->count; i++) {
        const char *name = checkpoint->tensors[i].name;
        size_t length = prefix_length(name);
        if (length == 0 ||
            (count && strlen(list[count - 1]) == length && strncmp(list[count - 1], name, length) == 0))
            continue;
        char *copy = nib_checkpoint_allocate(checkpoint, length + 1);
        if (!copy)
            return SIZE_MAX;
        memcpy(copy, name, length);
        list[count++] = copy;
    }
    return count;
}

nib_status nib_checkpoint_expert_prefixes(struct nib_checkpoint *checkpoint, const char *const **prefixes,
                                          size_t *count, struct nib_error *err)
{
    if (!checkpoint->prefixes) {
        size_t bytes = (checkpoint->count + 1) * sizeof *checkpoint->prefixes;
        const char **list = nib_checkpoint_allocate(checkpoint, bytes);
        size_t found = list ? collect_prefixes(checkpoint, list) : SIZE_MAX;
        if (found == SIZE_MAX)
            return nib_fail_memory(err, bytes, "a list of layers");
        qsort(list, found, sizeof *list, compare_natural);
        checkpoint->prefixes = list;
        checkpoint->prefix_count = found;
    }
    *prefixes = checkpoint->prefixes;
    *count = checkpoint->prefix_count;
    return NIB_OK;
}

// ---- Scales that are NaN ----

// Where a byte of the map lies, in the words of its tensor.
static nib_status fail_scale(const struct nib_checkpoint *checkpoint, const uint8_t *byte, struct nib_error *err)
{
    for (size_t i = 0; i < checkpoint->count; i++) {
        const struct nib_tensor *tensor = &checkpoint->tensors[i];
        uintptr_t offset = (uintptr_t)byte - (uintptr_t)tensor->data;
        if (offset >= tensor->bytes || tensor->rank < 2)
            continue;
        int64_t blocks = tensor->shape[tensor->rank - 1], rows = tensor->shape[tensor->rank - 2];
        int64_t row = (int64_t)offset / blocks;
        char expert[40] = "";
        if (tensor->rank == 3)
            snprintf(expert, sizeof expert, "expert %lld, ", (long long)(row / rows));
        return nib_fail(err, NIB_ERR_FORMAT, "%s: %s: %srow %lld, block %lld: the scale is 255 (NaN)",
                        tensor->file, tensor->name, expert, (long long)(row % rows),
                        (long long)((int64_t)offset % blocks));
    }
    return nib_fail(err, NIB_ERR_FORMAT, "%s: a scale is 255 (NaN)", checkpoint->path);
}

// `rows` rows of `blocks` scales, `stride` rows apart.
static const uint8_t *find_nan(const uint8_t *scales, int64_t rows, int64_t blocks, int64_t stride)
{
    if (stride == 1)
        return memchr(scales, 255, (size_t)(rows * blocks));
    const uint8_t *found = NULL;
    for (int64_t r = 0; r < rows && !found; r++)
        found = memchr(scales + r * stride * blocks, 255, (size_t)blocks);
    return found;
}

nib_status nib_checkpoint_check_scales(const struct nib_checkpoint *checkpoint, const struct nib_experts *experts,
                                       struct nib_error *err)
{
    const struct nib_moe_weights *weights = &experts->weights;
    int64_t hidden = weights->hidden, intermediate = weights->intermediate, stride = weights->gate_up_row_stride;
    for (int64_t e = 0; e < weights->n_experts; e++) {
        const struct nib_expert *expert = &weights->experts[e];
        const uint8_t *found = find_nan(expert->gate_scales, intermediate, hidden / NIB_MX_BLOCK, stride);
        if (!found)
            found = find_nan(expert->up_scales, intermediate, hidden / NIB_MX_BLOCK, stride);
        if (!found)
            found = find_nan(expert->down_scales, hidden, intermediate / NIB_MX_BLOCK, 1);
        if (found)
            return fail_scale(checkpoint, found, err);
    }
    return NIB_OK;
}
