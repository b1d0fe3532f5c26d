#include "cli/options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_default(const struct nib_option *option)
{
    switch (option->kind) {
    case NIB_OPTION_INT:
        if ((double)*(int64_t *)option->target >= option->low)
            printf(" [%lld]", (long long)*(int64_t *)option->target);
        break;
    case NIB_OPTION_REAL:
        if (*(double *)option->target >= option->low)
            printf(" [%g]", *(double *)option->target);
        break;
    case NIB_OPTION_STRING:
    case NIB_OPTION_CHOICE:
        if (*(const char **)option->target)
            printf(" [%s]", *(const char **)option->target);
        break;
    case NIB_OPTION_LIST:
    case NIB_OPTION_FLAG:
        break;
    }
}

enum { HELP_COLUMN = 30 };

static int columns_of(const char *text) // of UTF-8: bytes that continue a character have none of their own
{
    int columns = 0;
    for (; *text; text++)
        columns += ((unsigned char)*text & 0xc0) != 0x80;
    return columns;
}

// What it does stands beside it, or below where its values are many.
static void print_option(const char *name, const char *value, const char *help)
{
    int width = 3 + columns_of(name) + columns_of(value);
    printf("  %s %s", name, value);
    if (width >= HELP_COLUMN) {
        printf("\n");
        width = 0;
    }
    printf("%*s%s", HELP_COLUMN - width, "", help);
}

static void print_help(const struct nib_usage *usage)
{
    printf("usage: %s %s%s[OPTIONS]\n\n%s\n\noptions:\n", usage->command, usage->arguments,
           *usage->arguments ? " " : "", usage->summary);
    for (int i = 0; i < usage->n_options; i++) {
        const struct nib_option *option = &usage->options[i];
        print_option(option->name, option->value ? option->value : "", option->help);
        print_default(option);
        printf("\n");
    }
    print_option("--help", "", "this text\n");
}

static bool mistake(const struct nib_usage *usage, int *exit_code, const char *what, const char *which)
{
    fprintf(stderr, "nibble: %s %s; %s --help lists the options\n", what, *which ? which : "\"\"", usage->command);
    *exit_code = 2;
    return false;
}

// Whether the text is the word, which ends at a '|' or at its end; a word that ends in ":N" takes any number there.
static bool is_word(const char *word, const char *text)
{
    size_t length = strcspn(word, "|"), given = strlen(text);
    if (length > 2 && strncmp(word + length - 2, ":N", 2) == 0)
        return strncmp(word, text, length - 1) == 0 && given >= length && given < length + 3 &&
               strspn(text + length - 1, "0123456789") == given - length + 1;
    return given == length && strncmp(word, text, length) == 0;
}

static bool one_of(const char *words, const char *text)
{
    for (const char *word = words; word; word = strchr(word, '|') ? strchr(word, '|') + 1 : NULL)
        if (is_word(word, text))
            return true;
    return false;
}

static bool set_value(const struct nib_option *option, const char *text, char *problem, size_t capacity)
{
    char *end;
    errno = 0;
    if (option->kind == NIB_OPTION_INT) {
        long long value = strtoll(text, &end, 10);
        if (end == text || *end || errno || (double)value < option->low || (double)value > option->high) {
            snprintf(problem, capacity, "%s takes a whole number from %.0f to %.0f, not", option->name,
                     option->low, option->high);
            return false;
        }
        *(int64_t *)option->target = value;
    } else if (option->kind == NIB_OPTION_REAL) {
        double value = strtod(text, &end);
        if (end == text || *end || !(value >= option->low && value <= option->high)) {
            snprintf(problem, capacity, "%s takes a number from %g to %g, not", option->name, option->low,
                     option->high);
            return false;
        }
        *(double *)option->target = value;
    } else if (option->kind == NIB_OPTION_LIST) {
        struct nib_option_list *list = option->target;
        if (list->count == sizeof list->items / sizeof *list->items) {
            snprintf(problem, capacity, "%s is given more than %zu times, at", option->name, list->count);
            return false;
        }
        list->items[list->count++] = text;
    } else {
        if (option->kind == NIB_OPTION_CHOICE && !one_of(option->value, text)) {
            snprintf(problem, capacity, "%s takes %s, not", option->name, option->value);
            return false;
        }
        *(const char **)option->target = text;
    }
    return true;
}

// Whether argv names it as "--name" or "--name=value"; *value points behind the '='.
static bool is_named(const char *name, const char *argument, const char **value)
{
    size_t length = strlen(name);
    if (strncmp(argument, name, length) != 0 || (argument[length] && argument[length] != '='))
        return false;
    *value = argument[length] ? argument + length + 1 : NULL;
    return true;
}

static const struct nib_option *find_option(const struct nib_usage *usage, const char *argument,
                                            const char **value)
{
    static const char *const former[][2] = {{"--backend", "--device"}, {"--sequences", "--streams"}};
    const char *name = argument;
    for (size_t i = 0; i < sizeof former / sizeof *former; i++)
        if (is_named(former[i][0], argument, value))
            name = former[i][1];
    for (int i = 0; i < usage->n_options; i++) {
        const char *behind = NULL;
        if (!is_named(usage->options[i].name, name, &behind))
            continue;
        if (name == argument)
            *value = behind;
        return &usage->options[i];
    }
    return NULL;
}

bool nib_parse_options(const struct nib_usage *usage, int argc, char **argv, int *exit_code)
{
    int positionals = 0;
    bool only_positionals = false;
    for (int i = 0; i < argc; i++) {
        const char *argument = argv[i], *value = NULL;
        if (!only_positionals && (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0)) {
            print_help(usage);
            *exit_code = 0;
            return false;
        }
        if (!only_positionals && strcmp(argument, "--") == 0) {
            only_positionals = true;
            continue;
        }
        if (only_positionals || argument[0] != '-' || argument[1] == 0) {
            if (positionals == usage->n_positionals)
                return mistake(usage, exit_code, "one argument too many:", argument);
            usage->positionals[positionals++] = argument;
            continue;
        }
        const struct nib_option *option = find_option(usage, argument, &value);
        if (!option)
            return mistake(usage, exit_code, "unknown option", argument);
        if (option->kind == NIB_OPTION_FLAG) {
            if (value)
                return mistake(usage, exit_code, "no value belongs to", option->name);
            *(bool *)option->target = true;
            continue;
        }
        if (!value && ++i == argc)
            return mistake(usage, exit_code, "a value is missing behind", argument);
        char problem[128];
        if (!value)
            value = argv[i];
        if (!set_value(option, value, problem, sizeof problem))
            return mistake(usage, exit_code, problem, value);
    }
    if (positionals < usage->min_positionals)
        return mistake(usage, exit_code, "too few arguments, it takes", usage->arguments);
    return true;
}

int nib_parse_list(const char *text, int64_t high, int64_t *numbers, int capacity)
{
    int count = 0;
    for (const char *p = text;;) {
        char *end;
        long long value = strtoll(p, &end, 10);
        if (end == p || value < 1 || value > high || count == capacity || (*end && *end != ','))
            return 0;
        numbers[count++] = value;
        if (!*end)
            return count;
        p = end + 1;
    }
}
