// Rank files of tiktoken: lines of a token in base64, a space and its rank, which is its id.
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "text/tokenizer_parts.h"

// Tokens in use have at most some hundred bytes.
#define TOKEN_LIMIT 4096

static const struct nib_named_token o200k_harmony_specials[] = {
    {"<|startoftext|>", 199998},
    {"<|endoftext|>", 199999},
    {"<|reserved_200000|>", 200000},
    {"<|reserved_200001|>", 200001},
    {"<|return|>", 200002},
    {"<|constrain|>", 200003},
    {"<|reserved_200004|>", 200004},
    {"<|channel|>", 200005},
    {"<|start|>", 200006},
    {"<|end|>", 200007},
    {"<|message|>", 200008},
    {"<|reserved_200009|>", 200009},
    {"<|reserved_200010|>", 200010},
    {"<|reserved_200011|>", 200011},
    {"<|call|>", 200012},
    {"<|reserved_200013|>", 200013},
    {"<|reserved_200014|>", 200014},
    {"<|reserved_200015|>", 200015},
    {"<|reserved_200016|>", 200016},
    {"<|reserved_200017|>", 200017},
    {"<|endofprompt|>", 200018},
};

// By their place behind Kimi's 163584 ranks. Vocabularies of models that reason have <think> and </think>, too.
static const struct nib_named_token kimi_k2_specials[] = {
    {"[BOS]", 163584},
    {"[EOS]", 163585},
    {"<|im_end|>", 163586},
    {"<|im_user|>", 163587},
    {"<|im_assistant|>", 163588},
    {"[EOT]", 163593},
    {"<|im_system|>", 163594},
    {"<|tool_calls_section_begin|>", 163595},
    {"<|tool_calls_section_end|>", 163596},
    {"<|tool_call_begin|>", 163597},
    {"<|tool_call_argument_begin|>", 163598},
    {"<|tool_call_end|>", 163599},
    {"<|im_middle|>", 163601},
    {"[UNK]", 163838},
    {"[PAD]", 163839},
};

#define O200K_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define O200K_ENDING "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

// The same words, but no Chinese character is part of one.
#define KIMI_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"

static const struct nib_tokenizer_preset presets[] = {
    {
        .name = "o200k_harmony",
        .pattern = "[^\\r\\n\\p{L}\\p{N}]?" O200K_UPPER "*" O200K_LOWER "+" O200K_ENDING
                   "|[^\\r\\n\\p{L}\\p{N}]?" O200K_UPPER "+" O200K_LOWER "*" O200K_ENDING
                   "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        .specials = o200k_harmony_specials,
        .special_count = sizeof o200k_harmony_specials / sizeof *o200k_harmony_specials,
    },
    {
        .name = "kimi_k2",
        .pattern = "[\\p{Han}]+"
                   "|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER "+" O200K_ENDING
                   "|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "+" KIMI_LOWER "*" O200K_ENDING
                   "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        .specials = kimi_k2_specials,
        .special_count = sizeof kimi_k2_specials / sizeof *kimi_k2_specials,
        .reserved = 256,
    }};

const struct nib_tokenizer_preset *nib_tokenizer_preset_find(const char *name)
{
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++)
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    return NULL;
}

static int base64_value(char digit)
{
    if (digit >= 'A' && digit <= 'Z')
        return digit - 'A';
    if (digit >= 'a' && digit <= 'z')
        return digit - 'a' + 26;
    if (digit >= '0' && digit <= '9')
        return digit - '0' + 52;
    return digit == '+' ? 62 : digit == '/' ? 63 : -1;
}

// Padded base64; false if it is not that, is empty, or is too long.
static bool decode_base64(const char *text, size_t size, uint8_t bytes[static TOKEN_LIMIT], size_t *count)
{
    size_t padding = 0;
    while (padding < 2 && padding < size && text[size - 1 - padding] == '=')
        padding++;
    if (size == 0 || size % 4 != 0 || size / 4 * 3 > TOKEN_LIMIT)
        return false;
    uint32_t bits = 0;
    *count = 0;
    for (size_t i = 0; i < size; i++) {
        int value = i < size - padding ? base64_value(text[i]) : 0;
        if (value < 0)
            return false;
        bits = bits << 6 | (uint32_t)value;
        for (int shift = 16; i % 4 == 3 && shift >= 0; shift -= 8)
            bytes[(*count)++] = (uint8_t)(bits >> shift);
    }
    *count -= padding;
    return true;
}

// A decimal number of 1 … 9 digits.
static bool read_rank(const char *text, size_t size, int64_t *rank)
{
    *rank = 0;
    if (size == 0 || size > 9)
        return false;
    for (size_t i = 0; i < size; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        *rank = *rank * 10 + (text[i] - '0');
    }
    return true;
}

static nib_status read_line(struct nib_vocab *vocab, const char *line, size_t size, size_t number,
                            struct nib_error *err)
{
    uint8_t bytes[TOKEN_LIMIT];
    size_t count;
    int64_t rank;
    const char *space = memchr(line, ' ', size);
    if (!space || !decode_base64(line, (size_t)(space - line), bytes, &count) ||
        !read_rank(space + 1, size - (size_t)(space - line) - 1, &rank))
        return nib_fail(err, NIB_ERR_FORMAT, "line %zu is not a token in base64, a space and its rank", number);
    if (nib_vocab_add(vocab, rank, bytes, count, NIB_TOKEN_MERGED, err) != NIB_OK)
        return nib_fail_context(err, "line %zu", number);
    return NIB_OK;
}

static nib_status read_lines(struct nib_vocab *vocab, const char *bytes, size_t size, struct nib_error *err)
{
    nib_status status = NIB_OK;
    const char *line = bytes, *end = bytes + size;
    for (size_t number = 1; status == NIB_OK && line < end; number++) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        size_t length = (size_t)((newline ? newline : end) - line);
        size_t content = length > 0 && line[length - 1] == '\r' ? length - 1 : length;
        if (content > 0)
            status = read_line(vocab, line, content, number, err);
        line += newline ? length + 1 : length;
    }
    return status;
}

static nib_status add_special(struct nib_tokenizer *tokenizer, const char *text, int32_t id, struct nib_error *err)
{
    size_t size = strlen(text);
    nib_status status = nib_vocab_add(&tokenizer->vocab, id, text, size, NIB_TOKEN_SPECIAL, err);
    if (status == NIB_OK)
        status = nib_added_set_add(&tokenizer->added[0], &tokenizer->vocab, text, size,
                                   (struct nib_added_token){.id = id}, err);
    return status == NIB_OK ? NIB_OK : nib_fail_context(err, "special token %.80s", text);
}

static nib_status add_specials(struct nib_tokenizer *tokenizer, const struct nib_tokenizer_preset *preset,
                               struct nib_error *err)
{
    struct nib_vocab *vocab = &tokenizer->vocab;
    nib_status status = NIB_OK;
    int64_t first = vocab->size, end = first + (int64_t)preset->reserved;
    for (size_t i = 0; status == NIB_OK && i < preset->special_count; i++)
        status = add_special(tokenizer, preset->specials[i].text, preset->specials[i].id, err);
    for (int64_t id = first; status == NIB_OK && id < end; id++) {
        char text[48];
        snprintf(text, sizeof text, "<|reserved_token_%lld|>", (long long)id);
        if (id >= vocab->size || vocab->tokens[id].flags == 0)
            status = add_special(tokenizer, text, (int32_t)id, err);
    }
    return status == NIB_OK ? NIB_OK : nib_fail_context(err, "preset %s", preset->name);
}

nib_status nib_tokenizer_read_ranks(struct nib_tokenizer *tokenizer, const char *bytes, size_t size,
                                    const struct nib_tokenizer_preset *preset, struct nib_error *err)
{
    struct nib_vocab *vocab = &tokenizer->vocab;
    vocab->merges_by_rank = true;
    tokenizer->whole_words = true;
    tokenizer->unknown = -1;
    nib_status status = read_lines(vocab, bytes, size, err);
    if (status == NIB_OK)
        status = add_specials(tokenizer, preset, err);
    if (status == NIB_OK)
        status = nib_vocab_index(vocab, err);
    if (status != NIB_OK)
        return status;
    for (unsigned byte = 0; byte < 256; byte++)
        if (vocab->byte_ids[byte] < 0)
            return nib_fail(err, NIB_ERR_FORMAT, "no token for byte 0x%02x: not a whole rank file", byte);
    tokenizer->stage_count = 1;
    return nib_split_pattern_compile(preset->pattern, strlen(preset->pattern), NIB_REGEX_RUST,
                                     &tokenizer->stages[0].code, err);
}
