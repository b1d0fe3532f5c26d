// The chat page, src/server/chat_page.html; the build makes the definition.
#ifndef NIB_SERVER_CHAT_PAGE_H
#define NIB_SERVER_CHAT_PAGE_H

#include <stddef.h>

extern const char nib_chat_page[]; /* [nib_chat_page_size] */
extern const size_t nib_chat_page_size;

#endif
