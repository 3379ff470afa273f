// Command kube is Kubernetes in one program: the API server, the controllers, the scheduler, the parts of a node,
// kubectl, the controller for network policies, and etcd. Which of them it is depends on the name it is called by.
// One program is a quarter of the size of eight, and is linked once.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// A function, since making a command reads the environment and registers flags: only the one that runs is made.
type component func() int

func command(make func() *cobra.Command) component {
	return func() int { return cli.Run(make()) }
}

func main() {
	components := map[string]component{
		"etcd":                    func() int { etcdmain.Main(os.Args); return 0 },
		"kube-apiserver":          command(apiserver.NewAPIServerCommand),
		"kube-controller-manager": command(controllers.NewControllerManagerCommand),
		"kube-netpol":             command(netpolCommand),
		"kube-proxy":              command(proxy.NewProxyCommand),
		"kube-scheduler":          command(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
		"kubectl":                 command(kubectl.NewDefaultKubectlCommand),
		"kubelet":                 command(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
	}
	name := filepath.Base(os.Args[0])
	run, known := components[name]
	if !known {
		names := strings.Join(slices.Sorted(maps.Keys(components)), ", ")
		fmt.Fprintf(os.Stderr, "%s is none of the programs in here: call it by a link named %s\n", name, names)
		os.Exit(2)
	}
	os.Exit(run())
}
