// Calls written as mark-up, each argument between tags as bare text: MiMo and MiniMax.
#ifndef NIB_TOOL_MARKUP_H
#define NIB_TOOL_MARKUP_H

#include <jansson.h>

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

// What stands between call and call_end. Arguments that are no JSON object are written as they are.
void nib_markup_write_arguments(struct nib_writer *out, const struct nib_tool_markup *markup,
                                struct nib_text arguments);

#endif
