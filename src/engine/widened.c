#include "engine/widened.h"

#include <stdbool.h>
#include <string.h>

#include "checkpoint/experts.h"

static bool begins_with_any(const char *name, const char *const *prefixes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(prefixes[i]);
        if (strncmp(name, prefixes[i], length) == 0 && name[length] == '.')
            return true;
    }
    return false;
}

static bool is_scale(const char *name)
{
    size_t length = strlen(name);
    for (const char *const *ending = nib_scale_endings; *ending; ending++) {
        size_t tail = strlen(*ending);
        if (length >= tail && strcmp(name + length - tail, *ending) == 0)
            return true;
    }
    return false;
}

nib_status nib_widened_bytes(struct nib_checkpoint *checkpoint, uint64_t *bytes, struct nib_error *err)
{
    const char *const *prefixes;
    size_t count;
    nib_status status = nib_checkpoint_expert_prefixes(checkpoint, &prefixes, &count, err);
    *bytes = 0;
    for (size_t i = 0; !status && i < nib_checkpoint_count(checkpoint); i++) {
        const struct nib_tensor *tensor = nib_checkpoint_at(checkpoint, i);
        if (tensor->rank < 2)
            continue;
        bool packed = (tensor->dtype == NIB_U8 || tensor->dtype == NIB_I8) && !is_scale(tensor->name);
        if (tensor->dtype == NIB_F8_E4M3 || tensor->dtype == NIB_F16)
            *bytes += tensor->bytes;
        else if (packed && !begins_with_any(tensor->name, prefixes, count))
            *bytes += 3 * tensor->bytes; // two elements a byte, two bytes an element
    }
    return status;
}
