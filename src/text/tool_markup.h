// Calls written as mark-up, each argument between tags as bare text: MiMo and MiniMax.
#ifndef NIB_TOOL_MARKUP_H
#define NIB_TOOL_MARKUP_H

#include <jansson.h>

#include "text/byte_automaton.h"
#include "text/writer.h"

struct nib_tool_markup {
    const char *call, *call_end;           // "<invoke name=", "</invoke>"; the name and ">" follow the first
    const char *argument, *argument_end;   // "<parameter name=", "</parameter>"
    const char *before_name, *behind_name; // what is written around names: quotes, and ">"
    const char *null, *yes, *no;           // how these are written
};

// A JSON array of {"name": …, "arguments": JSON text}, new; NULL if the text is anything but calls and white space. Arguments
// are of the types that their tool's schema allows, and strings where it says nothing.
json_t *nib_markup_read(const struct nib_tool_markup *markup, struct nib_text text,
                        const struct nib_tool *tools /* [count] */, size_t count);

// Whether a text of calls ends within an argument's value.
bool nib_markup_in_argument(const struct nib_tool_markup *markup, struct nib_text text);

// What stands between call and call_end. Arguments that are no JSON object are written as they are.
void nib_markup_write_arguments(struct nib_writer *out, const struct nib_tool_markup *markup,
                                struct nib_text arguments);

// ---- arguments that are demanded

// Rules of what stands behind a call's name, its end included; all that they accept is read as arguments that the schema
// `parameters` accepts. Errors as of nib_json_schema_compile.
nib_status nib_markup_compile(const struct nib_tool_markup *markup, const json_t *parameters,
                              struct nib_rules *rules, int32_t *rule, struct nib_error *err);

// ---- between the two files of mark-up

enum {
    NIB_MARKUP_NULLS = 1,
    NIB_MARKUP_BOOLEANS = 2,
    NIB_MARKUP_INTEGERS = 4,
    NIB_MARKUP_NUMBERS = 8,
    NIB_MARKUP_OBJECTS = 16,
    NIB_MARKUP_ARRAYS = 32,
    NIB_MARKUP_STRINGS = 64
};

// What a schema within `root` stands for, one step of references or of an "allOf" with one member further; itself; or NULL.
const json_t *nib_markup_follow(const json_t *root, const json_t *schema);

// The types that a schema within `root` allows; 0: it does not say.
unsigned nib_markup_types(const json_t *root, const json_t *schema);

// Whether an argument of these types that is written so is read as this value.
bool nib_markup_reads_as(const struct nib_tool_markup *markup, struct nib_text text, unsigned types,
                         const json_t *value);

void nib_markup_write_value(struct nib_writer *out, const struct nib_tool_markup *markup, const json_t *value);

#endif
