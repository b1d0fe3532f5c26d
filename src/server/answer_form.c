// A chat as a prompt, and what it demands of the answer's form: a JSON schema, a call.
#include <stdio.h>
#include <stdlib.h>

#include "server/chat_request.h"
#include "server/date.h"
#include "server/generation.h"

// ---- response_format ----

static bool read_schema(struct nib_chat_request *request, const struct nib_fields *fields)
{
    static const char *const known[] = {"type", "name", "description", "schema", "strict", NULL};
    bool strict;
    if (!nib_fields_only(fields, known, NULL) || !nib_field_require(fields, "schema") ||
        !nib_field_text(fields, "name", &request->format.name) ||
        !nib_field_text(fields, "description", &request->format.description) ||
        !nib_field_bool(fields, "strict", &strict))
        return false;
    request->schema = nib_field(fields, "schema");
    if (!json_is_object(request->schema))
        return nib_field_fail(fields, "schema", "invalid_type", "'%sschema' must be an object.", fields->path);
    if (!request->format.name.size)
        request->format.name = nib_text_of("answer");
    request->format.schema = nib_chat_request_json(request, request->schema);
    return request->format.schema.bytes || nib_api_fail(fields->error, 500, NULL, NULL, "out of memory");
}

bool nib_read_format(struct nib_chat_request *request, const struct nib_fields *fields, const char *name,
                     bool flat)
{
    static const char *const types[] = {"text", "json_object", "json_schema", NULL};
    static const char *const outer_known[] = {"type", "json_schema", NULL};
    enum { TEXT, OBJECT, SCHEMA };
    const json_t *given = nib_field(fields, name);
    struct nib_fields outer, inner;
    int type = TEXT;
    if (!given)
        return true;
    if (!nib_fields_open(&outer, given, fields->error, "%s%s", fields->path, name) ||
        !nib_field_require(&outer, "type") || !nib_field_choice(&outer, "type", types, &type))
        return false;
    if (type == OBJECT)
        request->schema = nib_any_object();
    if (type != SCHEMA)
        return true;
    if (flat)
        return read_schema(request, &outer);
    return nib_fields_only(&outer, outer_known, NULL) && nib_field_require(&outer, "json_schema") &&
           nib_fields_open(&inner, nib_field(&outer, "json_schema"), fields->error, "%sjson_schema", outer.path) &&
           read_schema(request, &inner);
}

// ---- branches ----

static void add_branch(struct nib_generation *g, struct nib_message header, const json_t *schema, bool goes_on)
{
    g->branches[g->n_branches++] = (struct nib_guide_branch){header, schema, goes_on};
}

// Reasoning is free in any case.
static void add_reasoning(struct nib_generation *g)
{
    add_branch(g, nib_message_reasoning((struct nib_text){0}), NULL, true);
}

// The call's name and how many calls came before, as Kimi numbers them.
static struct nib_text call_id(struct nib_chat_request *request, struct nib_text recipient)
{
    size_t calls = 0, room = recipient.size + 24;
    for (size_t i = 0; i < request->n_messages; i++)
        calls += request->messages[i].role == NIB_ROLE_ASSISTANT && request->messages[i].recipient.size > 0;
    char *id = nib_arena_alloc(&request->arena, room);
    int size = id ? snprintf(id, room, "%.*s:%zu", (int)recipient.size, recipient.bytes, calls) : 0;
    return (struct nib_text){id, (size_t)size};
}

// What a tool's arguments must be. They are an object in any case, so a schema that asks for nothing asks for one.
static const json_t *arguments_schema(const json_t *parameters)
{
    static const char *const keywords[] = {"type",
                                           "properties",
                                           "required",
                                           "additionalProperties",
                                           "patternProperties",
                                           "$ref",
                                           "anyOf",
                                           "oneOf",
                                           "allOf",
                                           "enum",
                                           "const",
                                           NULL};
    if (!json_is_object(parameters))
        return nib_no_arguments();
    for (size_t i = 0; keywords[i]; i++)
        if (json_object_get(parameters, keywords[i]))
            return parameters;
    return nib_any_object();
}

// A call as gpt-oss writes it, with the recipient behind the channel or behind the role.
static void add_calls(struct nib_generation *g, struct nib_chat_request *request, size_t tool, bool bound)
{
    const json_t *tools = json_object_get(g->body, "tools"), *given = json_array_get(tools, tool);
    const json_t *function = json_object_get(given, "function");
    const json_t *parameters = json_object_get(function ? function : given, "parameters");
    const json_t *schema = arguments_schema(parameters);
    struct nib_message header =
        nib_message_call(nib_function_recipient(request, request->tools[tool].name), (struct nib_text){0});
    header.id = call_id(request, header.recipient);
    for (int in_channel = 0; in_channel < 2; in_channel++) {
        header.recipient_in_channel = in_channel;
        add_branch(g, header, bound ? schema : NULL, false);
    }
}

static void add_answers(struct nib_generation *g, const json_t *schema)
{
    struct nib_message header = nib_message_answer((struct nib_text){0});
    add_branch(g, header, schema, false);
    header.content_type = nib_text_of("json");
    header.constrained = true;
    add_branch(g, header, schema, false);
}

// The kinds of messages that the request lets the model write; none when it may write anything. Where a schema binds the
// answer there is no preamble of a call: when no call followed, it would stand in the content in front of the answer.
static bool add_branches(struct nib_generation *g, struct nib_chat_request *request, struct nib_api_error *error)
{
    bool must_call = request->tool_choice == NIB_TOOLS_REQUIRED || request->tool_choice == NIB_TOOLS_NAMED;
    if (!must_call && !request->schema)
        return true;
    g->branches = calloc(2 * request->n_tools + 8, sizeof *g->branches);
    if (!g->branches)
        return nib_api_fail(error, 500, NULL, NULL, "out of memory");
    add_reasoning(g);
    g->schema_field = must_call ? "tools" : json_object_get(g->body, "text") ? "text" : "response_format";
    for (size_t t = 0; t < request->n_tools; t++)
        if (request->tool_choice == NIB_TOOLS_NAMED ? t == request->named_tool
                                                    : request->tool_choice != NIB_TOOLS_NONE)
            add_calls(g, request, t, must_call);
    if (must_call)
        return true;
    add_answers(g, request->schema);
    return true;
}

// ---- prompt ----

bool nib_generation_chats(const struct nib_generation *g, struct nib_api_error *error)
{
    return g->server->chat ||
           nib_api_fail(error, 400, "unsupported_value", "model", "This model cannot chat; use /v1/completions.");
}

bool nib_generation_encode(struct nib_generation *g, struct nib_chat_request *request, const char *prompt_field,
                           struct nib_api_error *error)
{
    struct nib_error err;
    struct nib_date date = nib_prompt_date(g->server);
    struct nib_message reply = {0};
    if (!nib_chat_request_check_effort(request, g->server->chat, error))
        return false;
    bool forced = request->tool_choice == NIB_TOOLS_NAMED;
    if (forced) {
        struct nib_text name = request->tools[request->named_tool].name;
        reply = nib_message_call(nib_function_recipient(request, name), (struct nib_text){0});
        reply.recipient_in_channel = true;
    }
    g->tools = request->tools;
    g->n_tools = request->n_tools;
    g->tools_offered = request->tool_choice != NIB_TOOLS_NONE;
    g->one_call = !request->parallel_calls || forced || request->tool_choice == NIB_TOOLS_REQUIRED;
    nib_status status = nib_chat_request_encode(request, g->server->chat, g->server->tokenizer, date.text,
                                                forced ? &reply : NULL, &g->prompt, &g->preset, &err);
    return status ? nib_api_fail_status(error, prompt_field, &err) : add_branches(g, request, error);
}
