/* Makes the kernel of the peer seed its random numbers anew, now (random(4)). */
#include <fcntl.h>
#include <linux/random.h>
#include <sys/ioctl.h>

int main(void)
{
	int device = open("/dev/random", O_WRONLY);

	return device < 0 || ioctl(device, RNDRESEEDCRNG) != 0;
}
