// OpenAI's chat requests as conversations.
#ifndef NIB_SERVER_CHAT_REQUEST_H
#define NIB_SERVER_CHAT_REQUEST_H

#include "server/fields.h"
#include "text/writer.h"

enum nib_tool_choice { NIB_TOOLS_NONE, NIB_TOOLS_AUTO, NIB_TOOLS_REQUIRED, NIB_TOOLS_NAMED };

// What a request says to the model. Texts are borrowed from the request's JSON or lie in the arena.
struct nib_chat_request {
    struct nib_arena *arena;
    struct nib_message *messages; /* [n_messages] */
    size_t n_messages, capacity;
    struct nib_text instructions;
    struct nib_tool *tools; /* [n_tools] */
    size_t n_tools;
    enum nib_tool_choice tool_choice;
    size_t named_tool; // NIB_TOOLS_NAMED: its index
    enum nib_effort effort;
    char no_effort[128]; // the path of the field that wants no reasoning, if one does
    bool parallel_calls;
    // Of the final answer; schema NULL: free text.
    const json_t *schema;
    struct nib_response_format format; // told to the model when it has a schema text
};

void nib_chat_request_free(struct nib_chat_request *request);

// "messages" in OpenAI's form: system, developer, user, assistant (with reasoning_content and tool_calls), tool.
bool nib_read_messages(struct nib_chat_request *request, const struct nib_fields *fields);

// "tools", "tool_choice", "parallel_tool_calls". `flat`: a tool's fields stand beside its type, as in
// /v1/responses, not in an object "function".
bool nib_read_tools(struct nib_chat_request *request, const struct nib_fields *fields, bool flat);

// "response_format": text, json_object or json_schema. `flat`: the schema's fields stand beside its type, as in
// /v1/responses, not in an object "json_schema".
bool nib_read_format(struct nib_chat_request *request, const struct nib_fields *fields, const char *name,
                     bool flat);

bool nib_read_effort(struct nib_chat_request *request, const struct nib_fields *fields, const char *name);
// "chat_template_kwargs": {"enable_thinking": false} or {"thinking": false}, as the models' own templates call it, is the
// effort none.
bool nib_read_thinking(struct nib_chat_request *request, const struct nib_fields *fields);

// A message's content: a string, or parts of one of the types in the NULL-terminated list, joined. Absent: empty.
bool nib_read_content(struct nib_chat_request *request, const struct nib_fields *fields, const char *name,
                      const char *const *part_types, struct nib_text *text);

bool nib_chat_request_add(struct nib_chat_request *request, const struct nib_message *message,
                          struct nib_api_error *error);
// Instructions before anything else was said are one text; later ones are messages.
bool nib_chat_request_instruct(struct nib_chat_request *request, struct nib_text text,
                               struct nib_api_error *error);

// Whether the model can do without reasoning, if the request wants that.
bool nib_chat_request_check_effort(const struct nib_chat_request *request, const struct nib_chat *chat,
                                   struct nib_api_error *error);

// "functions." and the name, in the arena; empty when memory is out.
struct nib_text nib_function_recipient(struct nib_chat_request *request, struct nib_text name);

// As compact JSON, in the arena; without bytes when memory is out.
struct nib_text nib_chat_request_json(struct nib_chat_request *request, const json_t *json);

// The prompt's ids; the last `*preset` of them begin the answer (a call that the request demands).
nib_status nib_chat_request_encode(const struct nib_chat_request *request, const struct nib_chat *chat,
                                   const struct nib_tokenizer *tokenizer, const char *date,
                                   const struct nib_message *reply, struct nib_token_list *prompt, size_t *preset,
                                   struct nib_error *err);

#endif
