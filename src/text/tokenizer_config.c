// tokenizer_config.json: the names of special tokens that a rank file leaves out.
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "text/tokenizer_parts.h"

// A decimal id; -1 if it is none.
static int32_t read_id(const char *text)
{
    int64_t id = 0;
    for (; *text >= '0' && *text <= '9' && id < NIB_VOCAB_ID_LIMIT; text++)
        id = id * 10 + (*text - '0');
    return *text || id >= NIB_VOCAB_ID_LIMIT ? -1 : (int32_t)id;
}

static nib_status collect(const json_t *tokens, const char *name, struct nib_named_token **specials, size_t *count,
                          struct nib_error *err)
{
    const char *key;
    json_t *token;
    size_t bytes = json_object_size(tokens) * sizeof **specials;
    json_object_foreach((json_t *)tokens, key, token)
    {
        const json_t *content = json_object_get(token, "content");
        const char *text = json_string_value(content);
        if (read_id(key) < 0 || !*key || !text || !*text || strlen(text) != json_string_length(content))
            return nib_fail(err, NIB_ERR_FORMAT, "%s: added_tokens_decoder: \"%.32s\" is not an id with a content",
                            name, key);
        bytes += json_string_length(content) + 1;
    }
    *specials = malloc(bytes + 1);
    if (!*specials)
        return nib_fail_memory(err, bytes, "special tokens");
    char *texts = (char *)(*specials + json_object_size(tokens));
    json_object_foreach((json_t *)tokens, key, token)
    {
        const json_t *content = json_object_get(token, "content");
        size_t size = json_string_length(content) + 1;
        memcpy(texts, json_string_value(content), size);
        (*specials)[(*count)++] = (struct nib_named_token){texts, read_id(key)};
        texts += size;
    }
    return NIB_OK;
}

nib_status nib_tokenizer_read_specials(const char *bytes, size_t size, const char *name,
                                       struct nib_named_token **specials, size_t *count, struct nib_error *err)
{
    *specials = NULL;
    *count = 0;
    json_error_t error;
    // Numbers are of no concern, and that of model_max_length, where none is known, is 10^30 and too big for an integer.
    json_t *config = json_loadb(size ? bytes : "", size, JSON_DECODE_INT_AS_REAL, &error);
    if (!config)
        return nib_fail(err, NIB_ERR_FORMAT, "%s: line %d: %s", name, error.line, error.text);
    const json_t *tokens = json_object_get(config, "added_tokens_decoder");
    nib_status status = json_is_object(tokens) ? collect(tokens, name, specials, count, err) : NIB_OK;
    json_decref(config);
    return status;
}
