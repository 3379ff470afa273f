package main

import (
	"fmt"
	"sync"

	"github.com/cloudnativelabs/kube-router/v2/pkg/controllers/netpol"
	"github.com/cloudnativelabs/kube-router/v2/pkg/healthcheck"
	"github.com/cloudnativelabs/kube-router/v2/pkg/options"
	"github.com/spf13/cobra"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// netpolCommand enforces NetworkPolicies on one node, with kube-router's controller for them and nothing else of it.
// It calls iptables and ipset.
func netpolCommand() *cobra.Command {
	settings := options.NewKubeRouterConfig()
	settings.EnableIPv4, settings.RunFirewall = true, true
	command := &cobra.Command{
		Use:   "kube-netpol",
		Short: "Enforce NetworkPolicies on this node",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return enforce(settings) },
	}
	flags := command.Flags()
	flags.StringVar(&settings.Kubeconfig, "kubeconfig", settings.Kubeconfig, "file that says where the API server is")
	flags.StringVar(&settings.HostnameOverride, "hostname-override", settings.HostnameOverride, "this node's name")
	flags.StringSliceVar(&settings.ClusterIPCIDRs, "service-cluster-ip-range", settings.ClusterIPCIDRs, "addresses of Services")
	return command
}

func enforce(settings *options.KubeRouterConfig) error {
	access, err := clientcmd.BuildConfigFromFlags("", settings.Kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(access)
	if err != nil {
		return err
	}
	tables, sets, err := netpol.NewIPTablesHandlers(settings)
	if err != nil {
		return fmt.Errorf("iptables or ipset does not work here: %w", err)
	}

	end := server.SetupSignalHandler()
	watches := informers.NewSharedInformerFactory(client, 0)
	pods := watches.Core().V1().Pods().Informer()
	namespaces := watches.Core().V1().Namespaces().Informer()
	policies := watches.Networking().V1().NetworkPolicies().Informer()
	watches.Start(end)
	watches.WaitForCacheSync(end)

	controller, err := netpol.NewNetworkPolicyController(
		client, settings, pods, policies, namespaces, &sync.Mutex{}, tables, sets)
	if err != nil {
		return err
	}
	for _, add := range []func() error{
		func() error { _, err := pods.AddEventHandler(controller.PodEventHandler); return err },
		func() error { _, err := namespaces.AddEventHandler(controller.NamespaceEventHandler); return err },
		func() error { _, err := policies.AddEventHandler(controller.NetworkPolicyEventHandler); return err },
	} {
		if err := add(); err != nil {
			return err
		}
	}

	// the controller waits until its heartbeat is taken, and nobody here asks for one
	heartbeats := make(chan *healthcheck.ControllerHeartbeat)
	go func() {
		for range heartbeats {
		}
	}()
	var running sync.WaitGroup
	running.Add(1)
	controller.Run(heartbeats, end, &running)
	running.Wait()
	return nil
}
