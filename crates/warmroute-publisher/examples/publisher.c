/* An engine in C whose cache a router follows. Each line of its input is one step further.
 *
 *   cc publisher.c $(pkg-config --cflags --libs warmroute-publisher) -o publisher
 *   ./publisher tcp://0.0.0.0:5557 tcp://0.0.0.0:5558
 *
 * The router has, for its worker: block_size: 16 and
 *   kv_events: {endpoint: "tcp://ENGINE:5557", replay_endpoint: "tcp://ENGINE:5558"}
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <warmroute_publisher.h>

#define BLOCK_SIZE 16
#define BLOCKS 6

/* Ends the program if a call failed. */
static void check(int code, const char *call)
{
  if (code != WR_OK) {
    fprintf(stderr, "%s: %s (code %d)\n", call, wr_last_error(), code);
    exit(1);
  }
}

/* Waits for a line of the input, or for its end. */
static void wait_for_line(void)
{
  int letter;

  do {
    letter = getchar();
  } while (letter != '\n' && letter != EOF);
}

int main(int argc, char **argv)
{
  /* Names of the engine for its blocks. A real one has hashes of the content and everything before. */
  const uint64_t names[BLOCKS] = {101, 102, 103, 104, 105, UINT64_MAX};
  uint32_t prompt[BLOCKS * BLOCK_SIZE];
  char endpoint[128];
  char replay_endpoint[128];
  wr_publisher *publisher;
  uint32_t token;

  if (argc != 3) {
    fprintf(stderr, "usage: %s ENDPOINT REPLAY_ENDPOINT\n", argv[0]);
    return 2;
  }
  for (token = 0; token < BLOCKS * BLOCK_SIZE; token++) {
    prompt[token] = token;
  }
  check(wr_publisher_create(argv[1], argv[2], BLOCK_SIZE, &publisher), "create");
  check(wr_publisher_endpoint(publisher, endpoint, sizeof endpoint), "endpoint");
  check(wr_publisher_replay_endpoint(publisher, replay_endpoint, sizeof replay_endpoint),
        "replay_endpoint");

  /* The first four blocks of the prompt are in the cache. */
  check(wr_publisher_stored(publisher, prompt, 4 * BLOCK_SIZE, names, 4, NULL, 0), "stored");
  printf("%s %s\n", endpoint, replay_endpoint);
  fflush(stdout);

  /* The other two blocks are, too: they come after the fourth. */
  wait_for_line();
  check(wr_publisher_stored(publisher, prompt + 4 * BLOCK_SIZE, 2 * BLOCK_SIZE, names + 4, 2,
                            names + 3, 0),
        "stored");

  /* All but the first two blocks were evicted. */
  wait_for_line();
  check(wr_publisher_removed(publisher, names + 2, 4, 0), "removed");

  /* The engine has dropped its whole cache. */
  wait_for_line();
  check(wr_publisher_cleared(publisher, 0), "cleared");

  wait_for_line();
  check(wr_publisher_shutdown(publisher), "shutdown");
  if (wr_publisher_cleared(publisher, 0) != WR_CONFLICT) {
    fputs("a publisher that was shut down still publishes\n", stderr);
    return 1;
  }
  return 0;
}
